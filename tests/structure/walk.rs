//! A walk through the code, as a page in `docs/development/` lists it: functions in the order in which they are read. Pure.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{Block, File, ImplItem, Item, ItemTrait, TraitItem};

/// The functions of a walk.
pub struct Walk {
    /// Lists of functions. Each list begins with one that something outside of the code calls.
    legs: Vec<Vec<Step>>,
    /// Functions that the page names elsewhere.
    others: Vec<Step>,
}

struct Step {
    file: String,
    /// `function`, or `Type::function`.
    name: String,
    /// Whether a library calls it: the page says which, as in `(kube calls it)`.
    is_callback: bool,
}

/// What a walk costs its reader.
#[derive(Debug)]
pub struct Counts {
    /// Files that are opened.
    pub files: usize,
    /// Steps back to a file that was open before: to a function in it, or to find the next call.
    pub returns: usize,
}

impl Walk {
    /// The lists whose items begin with a file and a function, both in backquotes. What a heading `Beside …` is over is not
    /// on the way.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut walk = Self { legs: Vec::new(), others: Vec::new() };
        let (mut is_walk, mut in_list) = (true, false);
        for line in text.lines() {
            if line.starts_with('#') {
                is_walk = !line.trim_start_matches(['#', ' ']).starts_with("Beside ");
            }
            let Some(step) = step(line) else {
                // A list goes on over the lines that its items are wrapped to.
                in_list &= line.starts_with(' ');
                continue;
            };

            match walk.legs.last_mut() {
                _ if !is_walk => walk.others.push(step),
                Some(leg) if in_list => leg.push(step),
                _ => walk.legs.push(vec![step]),
            }
            in_list = is_walk;
        }
        if walk.legs.is_empty() { Err("names no function".into()) } else { Ok(walk) }
    }

    /// Follows the walk in the code that `source` has: each function is there, and one before it in its list calls it.
    pub fn follow(&self, source: impl Fn(&str) -> String) -> Result<Counts, String> {
        let mut parsed: BTreeMap<&str, File> = BTreeMap::new();
        let mut opened: BTreeSet<&str> = BTreeSet::new();
        let (mut current, mut returns) = ("", 0);
        for leg in &self.legs {
            let mut read: Vec<(&Step, BTreeSet<String>)> = Vec::new();
            for step in leg {
                let file = parsed.entry(&step.file).or_insert_with(|| {
                    syn::parse_file(&source(&step.file)).unwrap_or_else(|e| panic!("{}: {e}", step.file))
                });
                let body = body(file, &step.name).ok_or(format!("{} has no function {}", step.file, step.name))?;
                let name = step.name.rsplit("::").next().unwrap_or_default();
                let caller = read.iter().rev().find(|(_, words)| words.contains(name));
                if caller.is_none() && !read.is_empty() && !step.is_callback {
                    return Err(format!("no function before it calls {}", step.name));
                }

                // First back to where it is called, then to where it is.
                for file in caller.map(|(caller, _)| caller.file.as_str()).into_iter().chain([step.file.as_str()]) {
                    if file != current {
                        current = file;
                        returns += usize::from(!opened.insert(file));
                    }
                }
                read.push((step, body));
            }
        }

        for step in &self.others {
            let file = syn::parse_file(&source(&step.file)).map_err(|error| format!("{}: {error}", step.file))?;
            body(&file, &step.name).ok_or(format!("{} has no function {}", step.file, step.name))?;
        }
        Ok(Counts { files: opened.len(), returns })
    }
}

fn step(line: &str) -> Option<Step> {
    let item = line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches(['.', '-', '*']);
    let (file, rest) = item.trim_start().strip_prefix('`')?.split_once("` `")?;
    let (name, text) = rest.split_once('`')?;
    let step = Step { file: file.into(), name: name.into(), is_callback: text.contains(" calls it)") };
    file.starts_with("src/").then_some(step)
}

/// The words in a function, and in the functions of the same file that it calls, if the file has the function.
fn body(file: &File, name: &str) -> Option<BTreeSet<String>> {
    let (of, name) = name.rsplit_once("::").map_or((None, name), |(of, name)| (Some(of), name));
    let mut found = Vec::new();
    blocks(&file.items, of, name, &mut found);
    if found.is_empty() {
        return None;
    }

    let (mut words, mut seen) = (BTreeSet::new(), BTreeSet::new());
    while let Some(block) = found.pop() {
        let mut new = BTreeSet::new();
        collect(block.to_token_stream(), &mut new);
        for word in new.difference(&words).filter(|word| seen.insert((*word).clone())) {
            blocks(&file.items, None, word, &mut found);
        }
        words.extend(new);
    }
    Some(words)
}

fn blocks<'a>(items: &'a [Item], of: Option<&str>, name: &str, found: &mut Vec<&'a Block>) {
    for item in items {
        match item {
            Item::Fn(function) if of.is_none() && function.sig.ident == name => found.push(&function.block),
            Item::Impl(block) => {
                let own = block.self_ty.to_token_stream().to_string();
                if of.is_none_or(|of| own.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == of)) {
                    found.extend(block.items.iter().filter_map(|item| match item {
                        ImplItem::Fn(function) if function.sig.ident == name => Some(&function.block),
                        _ => None,
                    }));
                }
            }
            Item::Trait(ItemTrait { ident, items, .. }) if of.is_none_or(|of| ident == of) => {
                found.extend(items.iter().filter_map(|item| match item {
                    TraitItem::Fn(function) if function.sig.ident == name => function.default.as_ref(),
                    _ => None,
                }));
            }
            Item::Mod(module) => {
                let items = module.content.as_ref().map(|(_, items)| items.as_slice()).unwrap_or_default();
                blocks(items, of, name, found);
            }
            _ => {}
        }
    }
}

fn collect(tokens: TokenStream, words: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(word) => drop(words.insert(word.to_string())),
            TokenTree::Group(group) => collect(group.stream(), words),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}
