//! What `make test-long` says of the mutants that survive. IO: runs `tests/mutants/compare` on made-up results.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path, process::Command};

use tempfile::TempDir;

const LIST: &str = "\
# Mutants that survive
Text about `- no mutant`.

## src/a.rs
- `replace f -> bool with true`: an equal result
  on two lines

## src/b.rs
- `replace < with <= in g`: both are logged alike
- `replace < with <= in g`: the same in the other branch
";

const SURVIVED: [&str; 3] = [
    "src/b.rs:7:9: replace < with <= in g",
    "src/a.rs:10:5: replace f -> bool with true",
    "src/b.rs:12:9: replace < with <= in g",
];

/// Exit status and output of a comparison with `LIST`; `caught` more mutants were noticed.
fn compare(options: &[&str], missed: &[&str], caught: usize) -> (bool, String) {
    let folder = TempDir::new().unwrap();
    let write = |file: &str, lines: &str| fs::write(folder.path().join(file), format!("{lines}\n")).unwrap();
    write("survivors.md", LIST);
    write("missed.txt", &missed.join("\n"));
    write("caught.txt", &vec!["src/a.rs:1:5: replace h with ()"; caught].join("\n"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mutants/compare");
    let list = folder.path().join("survivors.md");
    let output = Command::new(script).args(options).arg(list).arg(folder.path()).output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn survivors_that_are_all_explained_pass_wherever_their_lines_moved() {
    let (passed, said) = compare(&["--whole"], &SURVIVED, 27);
    assert!(passed, "{said}");
    assert_eq!(said, "3 of 30 mutants survive (10 %)\n");
}

#[test]
fn a_survivor_that_is_not_explained_fails_and_is_printed_in_the_form_of_the_list() {
    let more = [&SURVIVED[..], &["src/a.rs:30:5: replace k -> Result<()> with Ok(())"]].concat();
    for options in [&[][..], &["--whole"]] {
        let (passed, said) = compare(options, &more, 96);
        assert!(!passed);
        assert!(said.ends_with("\n  ## src/a.rs\n  - `replace k -> Result<()> with Ok(())`:\n"), "{said}");
    }
}

#[test]
fn a_second_survivor_of_the_same_name_needs_a_line_of_its_own() {
    let more = [&SURVIVED[..], &["src/a.rs:99:5: replace f -> bool with true"]].concat();
    let (passed, said) = compare(&[], &more, 96);
    assert!(!passed);
    assert!(said.ends_with("\n  ## src/a.rs\n  - `replace f -> bool with true`:\n"), "{said}");
}

#[test]
fn an_explanation_of_a_mutant_that_no_longer_survives_fails_only_where_everything_was_tried() {
    let fewer = &SURVIVED[..2];
    assert!(compare(&[], fewer, 98).0);
    let (passed, said) = compare(&["--whole"], fewer, 98);
    assert!(!passed);
    assert!(said.ends_with("\n  ## src/b.rs\n  - `replace < with <= in g`:\n"), "{said}");
}

#[test]
fn more_than_a_tenth_fails_even_where_each_is_explained() {
    let (passed, said) = compare(&["--whole"], &SURVIVED, 20);
    assert!(!passed);
    assert!(said.ends_with("More than 10 % survive.\n"), "{said}");
    assert!(compare(&[], &SURVIVED, 20).0);
}

#[test]
fn the_results_of_several_runs_count_together() {
    let folder = TempDir::new().unwrap();
    let results: Vec<_> = [("a", &SURVIVED[..1]), ("b", &SURVIVED[1..])]
        .into_iter()
        .map(|(name, missed)| {
            let results = folder.path().join(name);
            fs::create_dir(&results).unwrap();
            fs::write(results.join("missed.txt"), missed.join("\n") + "\n").unwrap();
            fs::write(results.join("caught.txt"), "src/a.rs:1:5: replace h with ()\n".repeat(20)).unwrap();
            results
        })
        .collect();
    let list = folder.path().join("survivors.md");
    fs::write(&list, LIST).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mutants/compare");
    let output = Command::new(script).arg("--whole").arg(list).args(results).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "3 of 43 mutants survive (6 %)\n");
    assert!(output.status.success());
}

#[test]
fn each_line_of_held_names_tests_and_existing_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let held = fs::read_to_string(root.join("tests/mutants/held")).unwrap();
    for line in held.lines().filter(|line| !line.starts_with('#')) {
        let (tests, patterns) = line.split_once(' ').unwrap();
        let folder = format!("src/{}", tests.trim_end_matches("::").replace("::", "/"));
        assert!(root.join(&folder).is_dir(), "{line}");
        for pattern in patterns.split(' ') {
            let path = pattern.strip_suffix("/**/*.rs").unwrap_or(pattern);
            assert!(root.join(path).exists() && path.starts_with(&folder), "{line}");
        }
    }
}
