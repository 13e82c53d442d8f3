//! Which module of the crate uses which: from `use` declarations and from paths in the code, tests left out. IO: reads `src`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use syn::{
    Attribute, Item, UseTree,
    visit_mut::{self, VisitMut},
};

/// One module uses another.
pub struct Import {
    /// The module that uses, such as `controller`, `plan`.
    pub from: Vec<String>,
    /// The module or the item that is used.
    pub to: Vec<String>,
    /// The file, for messages.
    pub file: String,
}

/// Every import below `src`, but for those of tests.
pub fn imports(root: &Path) -> Vec<Import> {
    let mut files = Vec::new();
    rust_files(&root.join("src"), &mut files);
    let mut tests = Vec::new();
    let parsed: Vec<_> = files
        .into_iter()
        .map(|path| {
            let file = path.strip_prefix(root).unwrap().display().to_string();
            let module = module(&file);
            let syntax = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap_or_else(|e| panic!("{file}: {e}"));
            tests.extend(test_modules(&module, &syntax.items));
            (file, module, syntax)
        })
        .collect();

    let mut imports = Vec::new();
    for (file, module, mut syntax) in parsed {
        if !tests.iter().any(|test| module.starts_with(test)) {
            let mut found = Found { module: &module, paths: Vec::new() };
            found.visit_file_mut(&mut syntax);
            imports.extend(found.paths.into_iter().map(|to| Import { from: module.clone(), to, file: file.clone() }));
        }
    }
    imports
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// `src/controller/plan/mod.rs` is the module `controller`, `plan`.
fn module(file: &str) -> Vec<String> {
    let path = file.trim_start_matches("src/").trim_end_matches(".rs");
    let mut module: Vec<String> = path.split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        module.pop();
    }
    module
}

fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Ident>().is_ok_and(|what| what == "test")
    })
}

/// The modules in files of their own that only a test build has.
fn test_modules(module: &[String], items: &[Item]) -> Vec<Vec<String>> {
    let of_tests = items.iter().filter_map(|item| match item {
        Item::Mod(declared) if is_of_tests(&declared.attrs) => Some(declared.ident.to_string()),
        _ => None,
    });
    of_tests.map(|name| module.iter().cloned().chain([name]).collect()).collect()
}

struct Found<'a> {
    module: &'a [String],
    paths: Vec<Vec<String>>,
}

impl Found<'_> {
    fn add(&mut self, path: &[String]) {
        let first = path.first().map(String::as_str);
        let absolute: Vec<String> = match first {
            Some("crate") => path[1..].to_vec(),
            Some("self") => self.module.iter().chain(&path[1..]).cloned().collect(),
            Some("super") => {
                let up = path.iter().take_while(|part| *part == "super").count();
                let kept = self.module.len().saturating_sub(up);
                self.module[..kept].iter().chain(&path[up..]).cloned().collect()
            }
            _ => return,
        };
        self.paths.push(absolute);
    }

    fn add_tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: &syn::Ident| before.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>();
        match tree {
            UseTree::Path(path) => self.add_tree(&with(&path.ident), &path.tree),
            UseTree::Name(name) => self.add(&with(&name.ident)),
            UseTree::Rename(name) => self.add(&with(&name.ident)),
            UseTree::Glob(_) => self.add(before),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_tree(before, tree)),
        }
    }
}

impl VisitMut for Found<'_> {
    fn visit_item_mod_mut(&mut self, module: &mut syn::ItemMod) {
        if !is_of_tests(&module.attrs) {
            visit_mut::visit_item_mod_mut(self, module);
        }
    }

    fn visit_item_use_mut(&mut self, used: &mut syn::ItemUse) {
        if !is_of_tests(&used.attrs) {
            self.add_tree(&[], &used.tree);
        }
    }

    fn visit_path_mut(&mut self, path: &mut syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.add(&parts);
        visit_mut::visit_path_mut(self, path);
    }
}
