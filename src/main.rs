//! The one binary. Everything it does is in the library.

fn main() -> std::process::ExitCode {
    dra_operator::cli::run()
}
