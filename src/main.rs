//! The entry point. The library does all the work.

fn main() -> std::process::ExitCode {
    dra_operator::cli::run()
}
