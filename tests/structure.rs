//! The structure of the code is what its documents say: modules depend on each other in one direction, and the walks in
//! `docs/development/` follow real calls. IO: reads the checkout.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod structure {
    pub mod imports;
    pub mod walk;
}

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use structure::{imports::imports, walk::Walk};

/// Folders of `src` whose modules depend on each other in one direction too.
const ROOMS: [&[&str]; 5] = [&["controller"], &["plugin"], &["policy"], &["policy", "preview"], &["cli"]];

/// A return is a step back to a file that the reader had open before. More than this, and readers lose the thread.
const MOST_RETURNS: usize = 8;

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file))
        .unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Which modules directly in `folder` use which others there, and where.
fn edges(folder: &[&str]) -> BTreeMap<(String, String), String> {
    let mut edges = BTreeMap::new();
    for import in imports(Path::new(env!("CARGO_MANIFEST_DIR"))) {
        let (Some(from), Some(to)) = (below(folder, &import.from), below(folder, &import.to)) else { continue };
        if from != to {
            edges.entry((from, to)).or_insert(import.file);
        }
    }
    edges
}

fn below(folder: &[&str], path: &[String]) -> Option<String> {
    path.strip_prefix(&folder.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()[..])?.first().cloned()
}

/// One circle among the modules, as the list of files that close it.
fn circle(edges: &BTreeMap<(String, String), String>) -> Option<String> {
    let mut left: BTreeSet<&(String, String)> = edges.keys().collect();
    // What nothing uses, and what uses nothing, is in no circle.
    loop {
        let before = left.len();
        let users: BTreeSet<&String> = left.iter().map(|(from, _)| from).collect();
        let used: BTreeSet<&String> = left.iter().map(|(_, to)| to).collect();
        left.retain(|(from, to)| used.contains(from) && users.contains(to));
        if left.len() == before {
            break;
        }
    }
    let named = left.into_iter().map(|edge| format!("{} → {} ({})", edge.0, edge.1, edges[edge]));
    Some(named.collect::<Vec<_>>().join("\n")).filter(|circle| !circle.is_empty())
}

#[test]
fn modules_depend_on_each_other_as_lib_rs_says() {
    let text = read("src/lib.rs");
    let rule = text.lines().find(|line| line.contains('←')).expect("lib.rs gives the order with ←");
    let rule = rule.trim_start_matches("//!").trim().trim_end_matches('.').trim_matches('`');
    let layer: BTreeMap<&str, usize> = rule
        .split('←')
        .enumerate()
        .flat_map(|(layer, modules)| modules.split(',').map(move |module| (module.trim(), layer)))
        .collect();

    for ((from, to), file) in edges(&[]) {
        let of = |module: &str| layer.get(module).unwrap_or_else(|| panic!("lib.rs's rule does not name {module}"));
        assert!(of(&to) < of(&from), "{file}: {from} must not use {to}: the rule in src/lib.rs is {rule}");
    }
}

#[test]
fn no_module_is_used_by_what_it_uses() {
    for folder in ROOMS {
        if let Some(circle) = circle(&edges(folder)) {
            panic!("src/{}: a circle\n{circle}", folder.join("/"));
        }
    }
}

#[test]
fn a_walk_follows_real_calls_and_does_not_lose_its_reader() {
    for page in ["config-to-daemonset", "claim-to-cpuset", "sysfs-to-device"] {
        let page = format!("docs/development/{page}.md");
        let walk = Walk::parse(&read(&page)).unwrap_or_else(|problem| panic!("{page}: {problem}"));
        let counts = walk.follow(read).unwrap_or_else(|problem| panic!("{page}: {problem}"));
        let said = format!("{} entered, and {} returns", counts.files, counts.returns);
        assert!(read(&page).contains(&said), "{page}: the walk has {said}; the page says something else");
        assert!(counts.returns <= MOST_RETURNS, "{page}: {said}, and at most {MOST_RETURNS} returns are readable");
    }
}

#[test]
fn files_that_the_development_pages_name_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = 0;
    for entry in fs::read_dir(root.join("docs/development")).unwrap() {
        let page = entry.unwrap().path();
        let text = fs::read_to_string(&page).unwrap();
        for path in text.split('`').filter(|word| word.starts_with("src/") || word.starts_with("tests/")) {
            let path = path.split(['*', ' ']).next().unwrap();
            assert!(root.join(path).exists(), "{}: {path} is not there", page.display());
            named += 1;
        }
    }
    assert!(named > 50, "only {named} paths were found");
}

#[test]
fn a_walk_of_calls_that_are_not_there_is_refused() {
    let source = |file: &str| -> String {
        match file {
            "src/a.rs" => "fn first() { second(); }\nfn other() {}".into(),
            "src/b.rs" => {
                "impl Thing { fn second(&self) { tokio::select! { _ = third() => {} } } }\nfn third() {}".into()
            }
            _ => panic!("{file}"),
        }
    };
    let follow = |text: &str| Walk::parse(text).and_then(|walk| walk.follow(source));

    let whole = "1. `src/a.rs` `first`: begins\n2. `src/b.rs` `Thing::second`: goes on\n3. `src/b.rs` `third`";
    let counts = follow(whole).unwrap();
    assert_eq!((counts.files, counts.returns), (2, 0));

    let back = format!("{whole}\n\nLater:\n\n- `src/a.rs` `other`");
    assert_eq!(follow(&back).unwrap().returns, 1, "a file that was open is opened again");

    for (text, problem) in [
        ("## Beside the walk\n- `src/a.rs` `first`", "names no function"),
        ("- `src/a.rs` `frist`", "src/a.rs has no function frist"),
        ("- `src/b.rs` `Other::second`", "src/b.rs has no function Other::second"),
        ("- `src/a.rs` `first`\n## Beside it\n- `src/a.rs` `tenth`", "src/a.rs has no function tenth"),
        ("- `src/a.rs` `first`\n- `src/a.rs` `other`", "no function before it calls other"),
    ] {
        assert_eq!(follow(text).unwrap_err(), problem);
    }
}
