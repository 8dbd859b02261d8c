//! docs/architecture.md names the crates that exist, and modules form no circles.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

#[test]
fn the_architecture_names_each_crate_in_the_table_of_its_folder_and_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let workspace = fs::read_to_string(root.join("Cargo.toml")).expect("Cargo.toml");
    let members =
        workspace.lines().find_map(|line| line.strip_prefix("members = ")).expect("the workspace has members");
    let folders: Vec<_> = members.split('"').filter_map(|member| member.strip_suffix("/*")).collect();
    assert_eq!(folders, ["crates", "kube", "testing"], "docs/architecture.md and hack/words.sh name these folders");
    let page = fs::read_to_string(root.join("docs/architecture.md")).expect("docs/architecture.md");
    let (_, crates) = page.split_once("\n## Crates\n").expect("the section of crates");
    let (crates, _) = crates.split_once("\n## ").expect("the section after that of crates");
    let row = |line: &str| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name.to_owned());
    for folder in folders {
        let (_, table) = crates.split_once(&format!("\n### `{folder}/`\n")).expect("the section of the folder");
        let table = table.split("\n### ").next().unwrap_or_default();
        let named: BTreeSet<_> = table.lines().filter_map(row).collect();
        let is_crate = |entry: &fs::DirEntry| entry.path().join("Cargo.toml").exists();
        let entries = fs::read_dir(root.join(folder)).expect("the folder").filter_map(Result::ok);
        let existing: BTreeSet<_> =
            entries.filter(is_crate).map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        assert_eq!(named, existing, "the crates in {folder}/");
    }
}

/// A path through modules to an item, such as `["store", "Key"]` for `crate::store::Key`.
type ModulePath = Vec<String>;

/// A file of a crate, as far as its dependencies on other files matter.
#[derive(Default)]
struct Module {
    /// The items of the crate that the file names.
    uses: Vec<ModulePath>,
    /// The items of other files that the file gives out under its own name (`pub use`).
    exports: BTreeMap<String, ModulePath>,
}

/// Calls of methods are not seen: a module that adds methods to a type of another one, such as those of `state::Inner`, is not named by their
/// callers.
#[test]
fn the_modules_of_the_embedded_api_server_form_no_circle() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kube/apiserver/src");
    let mut sources = BTreeMap::new();
    read_sources(&src, &[], &mut sources);
    assert!(sources.len() > 50, "the sources of the embedded API server are in {}", src.display());
    let circles = circles(&sources);
    assert!(
        circles.is_empty(),
        "move what the modules need of each other into a module below them:\n{}",
        circles.join("\n")
    );
}

#[test]
fn a_circle_of_modules_is_named_with_what_closes_it() {
    let sources = |texts: &[(&str, &str)]| -> BTreeMap<ModulePath, String> {
        let path =
            |name: &str| name.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect::<ModulePath>();
        texts.iter().map(|(name, text)| (path(name), (*text).to_owned())).collect()
    };
    let state = "pub struct State;\n#[cfg(test)]\nmod tests {\n    use crate::write::Write;\n}\n";
    let sound = [
        ("", "mod state;\nmod write;\npub use write::Write;\n"),
        ("state", state),
        ("write", "mod create;\npub(crate) use create::Write;\npub struct Key;\n"),
        // The parent gives the item of its child out, and needs nothing of it.
        (
            "write::create",
            "use super::Key;\nuse crate::{other::Thing, state::{self, State}};\npub struct Write(Key);\n",
        ),
    ];
    assert_eq!(circles(&sources(&sound)), Vec::<String>::new());

    let mut wrong = sound;
    wrong[1].1 = "// crate::write\nconst TEXT: (&str, char) = (\"\\\" crate::write::Key\", '\"');\nstruct State<'a>(&'a crate::write::Write);\n";
    assert_eq!(
        circles(&sources(&wrong)),
        [
            "a circle of state, write::create:\n  state needs Write of write::create\n  write::create needs State of state"
        ]
    );
}

/// Reads the files of a folder by the path of their module. Files of tests are left out.
fn read_sources(folder: &Path, module: &[String], sources: &mut BTreeMap<ModulePath, String>) {
    for entry in fs::read_dir(folder).expect("the folder").filter_map(Result::ok) {
        let (file, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let mut path = module.to_vec();
        if file.is_dir() {
            path.push(name);
            read_sources(&file, &path, sources);
        } else if let Some(name) = name.strip_suffix(".rs").filter(|name| *name != "tests") {
            path.extend((name != "lib").then(|| name.to_owned()));
            sources.insert(path, fs::read_to_string(&file).expect("the source"));
        }
    }
}

/// What each module needs of others.
type Needs<'a> = BTreeMap<&'a [String], BTreeMap<&'a [String], BTreeSet<String>>>;

/// The circles of modules, each with what the modules need of each other.
fn circles(sources: &BTreeMap<ModulePath, String>) -> Vec<String> {
    let modules: BTreeMap<&ModulePath, Module> =
        sources.iter().map(|(path, source)| (path, module(path, source, sources))).collect();
    let mut needs = Needs::new();
    for (path, module) in &modules {
        let of_module = needs.entry(path.as_slice()).or_default();
        for used in &module.uses {
            let (other, item) = definition(used, &modules);
            if other != path.as_slice() {
                of_module.entry(other).or_default().extend(item);
            }
        }
    }
    let reached: BTreeMap<&[String], BTreeSet<&[String]>> =
        needs.keys().map(|&module| (module, reached(module, &needs))).collect();
    let in_circle = |a: &[String], b: &[String]| reached[a].contains(b) && reached[b].contains(a);
    let mut circles: BTreeSet<Vec<&[String]>> = BTreeSet::new();
    for module in needs.keys() {
        let circle: Vec<&[String]> = needs.keys().copied().filter(|other| in_circle(module, other)).collect();
        if !circle.is_empty() {
            circles.insert(circle);
        }
    }
    circles.iter().map(|circle| named(circle, &needs)).collect()
}

/// The modules that a module needs, and those that they need.
fn reached<'a>(from: &'a [String], needs: &Needs<'a>) -> BTreeSet<&'a [String]> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for &other in needs[module].keys() {
            if seen.insert(other) {
                next.push(other);
            }
        }
    }
    seen
}

/// A circle as people read it.
fn named(circle: &[&[String]], needs: &Needs<'_>) -> String {
    let name = |module: &[String]| if module.is_empty() { "lib".to_owned() } else { module.join("::") };
    let names: Vec<String> = circle.iter().map(|&module| name(module)).collect();
    let mut text = format!("a circle of {}:", names.join(", "));
    for module in circle {
        for (other, items) in needs[*module].iter().filter(|(other, _)| circle.contains(other)) {
            let items: Vec<&str> = items.iter().map(String::as_str).collect();
            text.push_str(&format!("\n  {} needs {} of {}", name(module), items.join(", "), name(other)));
        }
    }
    text
}

/// The module that defines what a path names, and the name there; no name for the module itself. A module that only gives the item out is passed
/// through.
fn definition<'a>(path: &[String], modules: &BTreeMap<&'a ModulePath, Module>) -> (&'a [String], Option<String>) {
    let innermost = (0..=path.len()).rev().find_map(|depth| modules.get_key_value(&path[..depth].to_vec()));
    let (module, found) = innermost.expect("the root of the crate");
    let rest = &path[module.len()..];
    match rest.first().and_then(|item| found.exports.get(item)) {
        Some(target) => definition(&[target.as_slice(), &rest[1..]].concat(), modules),
        None => (module.as_slice(), rest.first().cloned()),
    }
}

/// What a file uses and gives out, without its tests.
fn module(path: &[String], source: &str, sources: &BTreeMap<ModulePath, String>) -> Module {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let tokens = tokens(source);
    let mut module = Module::default();
    // The modules that the file imports, by their last name.
    let mut imported: BTreeMap<String, ModulePath> = BTreeMap::new();
    let mut at = 0;
    // Whether the token is in a `pub use`.
    let mut exports = false;
    while at < tokens.len() {
        match tokens[at] {
            "use" => exports = at > 0 && matches!(tokens[at - 1], "pub" | ")"),
            ";" => exports = false,
            _ => {}
        }
        let starts = is_word(tokens[at]) && tokens.get(at + 1) == Some(&"::") && (at == 0 || tokens[at - 1] != "::");
        if !starts {
            at += 1;
            continue;
        }
        let mut found = Vec::new();
        at = tree(&tokens, at, &[], &mut found);
        for used in &found {
            let Some(used) = absolute(used, path, &imported, sources) else { continue };
            let name = used.last().cloned().unwrap_or_default();
            if exports {
                module.exports.insert(name, used);
                continue;
            }
            if sources.contains_key(&used) {
                imported.insert(name, used.clone());
            }
            module.uses.push(used);
        }
    }
    module
}

/// A path from the root of the crate; none for a path to another crate, or one that starts with an item.
fn absolute(
    used: &[String],
    module: &[String],
    imported: &BTreeMap<String, ModulePath>,
    sources: &BTreeMap<ModulePath, String>,
) -> Option<ModulePath> {
    let (first, rest) = used.split_first()?;
    let supers = used.iter().take_while(|part| *part == "super").count();
    let child = [module, &used[..1]].concat();
    let mut path = match first.as_str() {
        "crate" => rest.to_vec(),
        "self" => [module, rest].concat(),
        "super" => [module.get(..module.len().checked_sub(supers)?)?, &used[supers..]].concat(),
        _ if sources.contains_key(&child) => [child.as_slice(), rest].concat(),
        first => [imported.get(first)?.as_slice(), rest].concat(),
    };
    // `use crate::auth::{self, …}` names the module.
    if path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    Some(path)
}

/// Adds the paths that start with the word at `at`, one for each leaf of a tree such as `a::{b, c::d}`. Returns the place after them.
fn tree(tokens: &[&str], mut at: usize, before: &[String], found: &mut Vec<ModulePath>) -> usize {
    let mut path = before.to_vec();
    path.push(tokens[at].to_owned());
    at += 1;
    while tokens.get(at) == Some(&"::") {
        match tokens.get(at + 1) {
            Some(&"{") => {
                at += 2;
                while tokens.get(at).is_some_and(|token| *token != "}") {
                    at = if is_word(tokens[at]) { tree(tokens, at, &path, found) } else { at + 1 };
                }
                return at + 1;
            }
            Some(word) if is_word(word) => path.push((*word).to_owned()),
            _ => break,
        }
        at += 2;
    }
    found.push(path);
    at
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The words and signs of a source, without comments and literals.
fn tokens(source: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let skipped = comment_or_literal(rest);
        let length = match skipped {
            Some(length) => length,
            None if rest.starts_with("::") => 2,
            None if is_word(rest) => rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len()),
            None => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        if skipped.is_none() && !first.is_whitespace() {
            tokens.push(token);
        }
        rest = after;
    }
    tokens
}

/// The length of the comment or literal that a text starts with, if it does.
fn comment_or_literal(text: &str) -> Option<usize> {
    let up_to = |start: usize, end: &str| text[start..].find(end).map_or(text.len(), |at| start + at + end.len());
    if text.starts_with("//") {
        return Some(up_to(2, "\n"));
    }
    if text.starts_with("/*") {
        return Some(up_to(2, "*/"));
    }
    if let Some(raw) = text.strip_prefix("br").or_else(|| text.strip_prefix('r')) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            return Some(up_to(text.len() - raw.len() + hashes + 1, &format!("\"{}", "#".repeat(hashes))));
        }
    }
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let inner = text[1..].chars().next()?;
    if quote == '\'' && inner != '\\' {
        // Without a second quote it is a lifetime.
        let end = 1 + inner.len_utf8();
        return text[end..].starts_with(quote).then_some(end + 1);
    }
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    Some(text.len())
}
