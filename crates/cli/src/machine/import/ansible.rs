//! Ansible inventories in INI and YAML format: hosts, nested groups, variables.
//!
//! Groups become labels `group.fleetwright.io/NAME`, variables become labels of their own name. Possible secrets, computed values and
//! invalid labels are dropped, with a note.

use std::collections::{BTreeMap, BTreeSet};

use super::candidate::{Candidate, Hop, ImportNotes, Imported, is_label_key, is_label_value, object_name};
use crate::package::source::SourceTree;

/// The label of a group.
const GROUP: &str = "group.fleetwright.io/";

/// Variables that have no meaning for Machines and are dropped without a note.
const SILENT: [&str; 12] = [
    "ansible_become",
    "ansible_become_method",
    "ansible_become_user",
    "ansible_python_interpreter",
    "ansible_connection",
    "ansible_ssh_pipelining",
    "ansible_pipelining",
    "ansible_shell_type",
    "ansible_host_key_checking",
    "ansible_ssh_retries",
    "ansible_ssh_timeout",
    "ansible_timeout",
];

/// A variable's value.
#[derive(Clone, Debug, PartialEq)]
enum AnsibleVar {
    Text(String),
    /// A list or map.
    Nested,
}

type Vars = BTreeMap<String, AnsibleVar>;

#[derive(Debug, Default)]
struct Group {
    /// The hosts of the group, each with its own variables.
    hosts: Vec<String>,
    vars: Vars,
    children: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Inventory {
    groups: BTreeMap<String, Group>,
    /// Every host once, in the order of the file: its place and its own variables.
    hosts: Vec<(String, String, Vars)>,
    notes: ImportNotes,
}

impl Inventory {
    fn host(&mut self, place: &str, name: &str, group: &str, vars: Vars) {
        match self.hosts.iter_mut().find(|(_, other, _)| other == name) {
            Some((_, _, known)) => known.extend(vars),
            None => self.hosts.push((place.to_owned(), name.to_owned(), vars)),
        }
        self.groups.entry(group.to_owned()).or_default().hosts.push(name.to_owned());
    }

    /// The groups of a host with their ancestors, the farthest first, and at the same distance by name: the order of Ansible's variable
    /// precedence.
    fn groups_of(&self, host: &str) -> Vec<&str> {
        let mut depths: BTreeMap<&str, usize> = BTreeMap::new();
        let mut next: Vec<&str> = self
            .groups
            .iter()
            .filter(|(_, group)| group.hosts.iter().any(|name| name == host))
            .map(|(name, _)| name.as_str())
            .collect();
        while let Some(name) = next.pop() {
            if depths.contains_key(name) {
                continue;
            }
            depths.insert(name, self.depth(name, &mut BTreeSet::new()));
            next.extend(
                self.groups
                    .iter()
                    .filter(|(_, group)| group.children.contains(name))
                    .map(|(parent, _)| parent.as_str()),
            );
        }
        let mut names: Vec<_> = depths.into_iter().filter(|(name, _)| *name != "all").collect();
        names.sort_by_key(|(name, depth)| (*depth, *name));
        let mut names: Vec<_> = names.into_iter().map(|(name, _)| name).collect();
        names.insert(0, "all");
        names
    }

    /// The length of the longest path to a root group. A cycle counts once.
    fn depth<'a>(&'a self, name: &'a str, seen: &mut BTreeSet<&'a str>) -> usize {
        if !seen.insert(name) {
            return 0;
        }
        let parents = self.groups.iter().filter(|(_, group)| group.children.contains(name));
        let depth = parents.map(|(parent, _)| self.depth(parent, seen) + 1).max().unwrap_or(0);
        seen.remove(name);
        depth
    }

    fn imported(mut self) -> Imported {
        let mut hosts = Vec::new();
        for (place, name, own) in std::mem::take(&mut self.hosts) {
            let groups = self.groups_of(&name);
            let mut vars = Vars::new();
            for group in &groups {
                vars.extend(self.groups.get(*group).map(|group| group.vars.clone()).unwrap_or_default());
            }
            vars.extend(own);
            let labels = groups
                .iter()
                .filter(|group| !matches!(**group, "all" | "ungrouped"))
                .map(|group| (*group).to_owned())
                .collect();
            hosts.extend(candidate(&place, &name, labels, vars, &mut self.notes));
        }
        Imported { hosts, notes: self.notes }
    }
}

fn candidate(
    place: &str,
    name: &str,
    groups: Vec<String>,
    mut vars: Vars,
    notes: &mut ImportNotes,
) -> Option<Candidate> {
    let connection = take(&mut vars, &["ansible_connection"], notes, place);
    if let Some(connection) = connection.filter(|word| !matches!(word.as_str(), "ssh" | "paramiko" | "smart")) {
        notes.say(place, format!("{name} uses the connection {connection}, not SSH: skipped"));
        return None;
    }
    let mut host = Candidate { place: place.to_owned(), name: object_name(name), ..Candidate::default() };
    if host.name != name {
        notes.say(place, format!("{name} is not a valid object name; renamed to {}", host.name));
    }
    let address = take(&mut vars, &["ansible_host", "ansible_ssh_host"], notes, place);
    host.addresses = vec![address.unwrap_or_else(|| name.to_owned())];
    host.user = take(&mut vars, &["ansible_user", "ansible_ssh_user"], notes, place);
    host.key_file = take(&mut vars, &["ansible_ssh_private_key_file", "ansible_private_key_file"], notes, place);
    if let Some(port) = take(&mut vars, &["ansible_port", "ansible_ssh_port"], notes, place) {
        match port.parse::<u16>() {
            Ok(port) if port > 0 => host.port = Some(port),
            _ => notes.say(place, format!("invalid ansible_port={port}; using 22")),
        }
    }
    for variable in ["ansible_ssh_common_args", "ansible_ssh_extra_args"] {
        if let Some(args) = take(&mut vars, &[variable], notes, place) {
            match jumps(&args) {
                Some(found) => host.jumps.extend(found),
                None => notes.say(
                    place,
                    format!("{variable}={args:?} is not supported: only -J HOST and -o ProxyJump=HOST are"),
                ),
            }
        }
    }
    for group in groups {
        let label = format!("{GROUP}{group}");
        if is_label_key(&label) {
            host.labels.insert(label, "true".to_owned());
        } else {
            notes.say(place, format!("the group {group} is not a valid label: dropped"));
        }
    }
    for (name, value) in vars {
        label(&mut host, place, &name, value, notes);
    }
    Some(host)
}

/// Turns a variable that does not concern SSH into a label, if it is a valid one.
fn label(host: &mut Candidate, place: &str, name: &str, value: AnsibleVar, notes: &mut ImportNotes) {
    if SILENT.contains(&name) {
        return;
    }
    if is_secret(name) {
        return notes.say(place, format!("the variable {name} may be a secret: dropped"));
    }
    if name.starts_with("ansible_") {
        return notes.say(place, format!("the variable {name} is not supported: dropped"));
    }
    match value {
        AnsibleVar::Nested => {
            notes.say(place, format!("the variable {name} is a list or a map, which cannot be a label: dropped"))
        }
        AnsibleVar::Text(text)
            if text.contains("{{") || text.starts_with("!vault") || text.starts_with("$ANSIBLE_VAULT") =>
        {
            notes.say(place, format!("the variable {name} is computed or encrypted: dropped"));
        }
        AnsibleVar::Text(text) if !is_label_key(name) || !is_label_value(&text) => {
            notes.say(place, format!("the variable {name} is not a valid label with that value (letters, digits, -, _ and ., at most 63): dropped"));
        }
        AnsibleVar::Text(text) => {
            // Some variables also have a field of their own: limits and failure domains use it.
            match name {
                "rack" => host.hardware.rack = Some(text.clone()),
                "zone" => host.hardware.zone = Some(text.clone()),
                "serial" => host.hardware.serial = Some(text.clone()),
                "model" => host.hardware.model = Some(text.clone()),
                _ => {}
            }
            host.labels.insert(name.to_owned(), text);
        }
    }
}

/// Words in a variable's name that mark its value as a secret, which must not become a label.
fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    ["pass", "secret", "token", "vault", "credential", "private", "api_key", "apikey"]
        .iter()
        .any(|word| name.contains(word))
}

/// The first of these variables that is set, as text.
fn take(vars: &mut Vars, names: &[&str], notes: &mut ImportNotes, place: &str) -> Option<String> {
    let mut found = None;
    for name in names {
        match vars.remove(*name) {
            Some(AnsibleVar::Text(text)) if text.contains("{{") => {
                notes.say(place, format!("the variable {name} is computed, which is not supported: dropped"))
            }
            Some(AnsibleVar::Text(text)) if !text.is_empty() => found = found.or(Some(text)),
            _ => {}
        }
    }
    found
}

/// The jump hosts in these arguments of ssh; none if the arguments contain other relevant options.
fn jumps(args: &str) -> Option<Vec<Hop>> {
    let mut words = words(args).into_iter();
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        let value = match word.as_str() {
            "-J" => words.next()?,
            "-o" => option(&words.next()?)?,
            joined if joined.starts_with("-J") => joined[2..].to_owned(),
            joined if joined.starts_with("-o") => option(&joined[2..])?,
            "-C" | "-q" | "-4" => String::new(),
            _ => return None,
        };
        for hop in value.split(',').filter(|hop| !hop.is_empty()) {
            found.push(Hop::parse(hop)?);
        }
    }
    Some(found)
}

/// The hosts of a ProxyJump option; an empty text for irrelevant options.
fn option(text: &str) -> Option<String> {
    let (name, value) = text.split_once(['=', ' '])?;
    match name.trim().to_lowercase().as_str() {
        "proxyjump" if value.trim() == "none" => Some(String::new()),
        "proxyjump" => Some(value.trim().to_owned()),
        "controlmaster"
        | "controlpersist"
        | "controlpath"
        | "serveraliveinterval"
        | "serveralivecountmax"
        | "connecttimeout"
        | "stricthostkeychecking"
        | "userknownhostsfile"
        | "preferredauthentications"
        | "compression"
        | "loglevel" => Some(String::new()),
        _ => None,
    }
}

/// The words of a line, with quotes as in a shell.
fn words(line: &str) -> Vec<String> {
    let (mut found, mut word, mut quote, mut open) = (Vec::new(), String::new(), None, false);
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), c) => word.push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                open = true;
            }
            (None, c) if c.is_whitespace() => {
                if open || !word.is_empty() {
                    found.push(std::mem::take(&mut word));
                }
                open = false;
            }
            (None, c) => word.push(c),
        }
    }
    if open || !word.is_empty() {
        found.push(word);
    }
    found
}

/// Parses an inventory in INI format.
pub(super) fn ini(file: &str, text: &str) -> Imported {
    let mut inventory = Inventory::default();
    let (mut group, mut part) = ("ungrouped".to_owned(), "hosts".to_owned());
    for (at, line) in text.lines().enumerate() {
        let place = format!("{file}:{}", at + 1);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(section, _)| section)
            && !line.contains('=')
        {
            let (name, kind) = section.split_once(':').unwrap_or((section, "hosts"));
            (group, part) = (name.trim().to_owned(), kind.trim().to_owned());
            inventory.groups.entry(group.clone()).or_default();
            if !matches!(part.as_str(), "hosts" | "vars" | "children") {
                inventory.notes.say(&place, format!("the section [{section}] is not supported: skipped"));
            }
            continue;
        }
        let line = line.split_once(" #").map_or(line, |(line, _)| line).trim();
        match part.as_str() {
            "hosts" => {
                let mut words = words(line).into_iter();
                let Some(pattern) = words.next() else { continue };
                let mut vars = Vars::new();
                for word in words {
                    match word.split_once('=') {
                        Some((name, value)) => drop(vars.insert(name.to_owned(), AnsibleVar::Text(value.to_owned()))),
                        None => {
                            inventory.notes.say(&place, format!("{word:?} is not a variable with a value: skipped"))
                        }
                    }
                }
                let (pattern, port) = match pattern.rsplit_once(':') {
                    Some((name, port)) if port.parse::<u16>().is_ok() && !name.contains(':') => {
                        (name.to_owned(), Some(port.to_owned()))
                    }
                    _ => (pattern, None),
                };
                if let Some(port) = port {
                    vars.entry("ansible_port".to_owned()).or_insert(AnsibleVar::Text(port));
                }
                match expand(&pattern) {
                    Some(names) => {
                        for name in names {
                            inventory.host(&place, &name, &group, vars.clone());
                        }
                    }
                    None => inventory.notes.say(&place, format!("{pattern} is neither a name nor a range: skipped")),
                }
            }
            "vars" => match line.split_once('=') {
                Some((name, value)) => {
                    let value = value.trim();
                    let plain = value.trim_matches(['"', '\'']);
                    let deep = value.starts_with(['[', '{']) && !value.starts_with("{{");
                    let var = if deep { AnsibleVar::Nested } else { AnsibleVar::Text(plain.to_owned()) };
                    inventory.groups.entry(group.clone()).or_default().vars.insert(name.trim().to_owned(), var);
                }
                None => inventory.notes.say(&place, format!("{line:?} is not a variable with a value: skipped")),
            },
            "children" => drop(inventory.groups.entry(group.clone()).or_default().children.insert(line.to_owned())),
            _ => {}
        }
    }
    inventory.imported()
}

/// The names of a range such as `web[01:03].example` or `db-[a:c]`; several ranges give their product. None if it is malformed or too large.
fn expand(pattern: &str) -> Option<Vec<String>> {
    let Some((head, rest)) = pattern.split_once('[') else { return Some(vec![pattern.to_owned()]) };
    let (range, tail) = rest.split_once(']')?;
    let mut bounds = range.split(':');
    let (from, to) = (bounds.next()?, bounds.next()?);
    let step: usize = bounds.next().map_or(Some(1), |step| step.parse().ok()).filter(|step| *step > 0)?;
    let middles: Vec<String> = match (from.parse::<u32>(), to.parse::<u32>()) {
        (Ok(first), Ok(last)) if first <= last => {
            let width = if from.starts_with('0') { from.len() } else { 0 };
            (first..=last).step_by(step).take(10_001).map(|number| format!("{number:0width$}")).collect()
        }
        _ => match (one(from)?, one(to)?) {
            (first, last) if first <= last => (first..=last).step_by(step).map(String::from).collect(),
            _ => return None,
        },
    };
    let tails = expand(tail)?;
    (middles.len() * tails.len() <= 10_000).then(|| {
        middles.iter().flat_map(|middle| tails.iter().map(move |tail| format!("{head}{middle}{tail}"))).collect()
    })
}

/// The character of a text with a single letter.
fn one(text: &str) -> Option<char> {
    let mut letters = text.chars();
    letters.next().filter(|letter| letter.is_ascii_alphabetic() && letters.next().is_none())
}

/// Whether a document looks like an inventory.
pub(super) fn is_inventory(tree: &SourceTree) -> bool {
    let group = |tree: &SourceTree| ["hosts", "children", "vars"].iter().any(|key| tree.get(key).is_some());
    let entries = tree.entries();
    !entries.is_empty()
        && entries.iter().all(|(_, tree)| tree.is_null() || group(tree))
        && entries.iter().any(|(_, tree)| group(tree))
}

/// Parses an inventory in YAML format.
pub(super) fn yaml(file: &str, tree: &SourceTree) -> Imported {
    let mut inventory = Inventory::default();
    for (name, group) in tree.entries() {
        group_of(file, name, group, &mut inventory, 0);
    }
    inventory.imported()
}

fn group_of(file: &str, name: &str, tree: &SourceTree, inventory: &mut Inventory, depth: usize) {
    inventory.groups.entry(name.to_owned()).or_default();
    let place = |tree: &SourceTree| format!("{file}:{}", tree.line);
    if depth > 32 {
        return inventory.notes.say(place(tree), "groups are nested too deeply: skipped");
    }
    for (key, below) in tree.entries() {
        match key.as_str() {
            "hosts" => {
                for (pattern, vars) in below.entries() {
                    let vars: Vars = vars.entries().iter().map(|(name, value)| (name.clone(), var(value))).collect();
                    match expand(pattern) {
                        Some(names) => {
                            names.iter().for_each(|host| inventory.host(&place(below), host, name, vars.clone()))
                        }
                        None => inventory
                            .notes
                            .say(place(below), format!("{pattern} is neither a name nor a range: skipped")),
                    }
                }
            }
            "vars" => {
                let vars: Vec<_> = below.entries().iter().map(|(name, value)| (name.clone(), var(value))).collect();
                inventory.groups.entry(name.to_owned()).or_default().vars.extend(vars);
            }
            "children" => {
                for (child, tree) in below.entries() {
                    inventory.groups.entry(name.to_owned()).or_default().children.insert(child.clone());
                    group_of(file, child, tree, inventory, depth + 1);
                }
            }
            other => {
                inventory.notes.say(place(below), format!("{other:?} of the group {name} is not supported: skipped"))
            }
        }
    }
}

fn var(tree: &SourceTree) -> AnsibleVar {
    match tree.value() {
        serde_json::Value::String(text) => AnsibleVar::Text(text),
        serde_json::Value::Null => AnsibleVar::Text(String::new()),
        serde_json::Value::Array(_) | serde_json::Value::Object(_) => AnsibleVar::Nested,
        other => AnsibleVar::Text(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INI: &str = r#"
# the fleet
lonely ansible_host=192.0.2.9

[web]
web[01:02].example.com rack=r1 ansible_user=admin
Web_X ansible_host=10.0.0.3 ansible_port=2222 speed="very fast" # a comment
[web:vars]
tier=front
ansible_ssh_common_args='-o ProxyJump=joe@gate.example:2200'
[db]
db1 ansible_password=hunter2 zone=z1 tier=data
win ansible_connection=winrm
[prod:children]
web
db
[prod:vars]
tier=any
site=east
expr={{ lookup('env', 'X') }}
[odd:something]
"#;

    fn by_name<'a>(imported: &'a Imported, name: &str) -> &'a Candidate {
        imported.hosts.iter().find(|host| host.name == name).unwrap_or_else(|| panic!("{name}: {imported:#?}"))
    }

    #[test]
    fn hosts_groups_and_variables_of_an_ini_become_machines_with_labels() {
        let imported = ini("hosts.ini", INI);
        let names: Vec<_> = imported.hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["lonely", "web01.example.com", "web02.example.com", "web-x", "db1"]);
        let web = by_name(&imported, "web01.example.com");
        assert_eq!(web.addresses, ["web01.example.com"]);
        assert_eq!(web.user.as_deref(), Some("admin"));
        assert_eq!(web.hardware.rack.as_deref(), Some("r1"));
        assert_eq!(web.jumps, [Hop::parse("joe@gate.example:2200").unwrap()]);
        let labels: Vec<_> = web.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(
            labels,
            ["group.fleetwright.io/prod=true", "group.fleetwright.io/web=true", "rack=r1", "site=east", "tier=front"]
        );
        let x = by_name(&imported, "web-x");
        assert_eq!((x.addresses[0].as_str(), x.port), ("10.0.0.3", Some(2222)));
        assert_eq!(by_name(&imported, "db1").labels["tier"], "data", "the host's own variable wins");
        assert_eq!(by_name(&imported, "db1").hardware.zone.as_deref(), Some("z1"));
        assert_eq!(by_name(&imported, "lonely").labels.len(), 0);
    }

    #[test]
    fn what_is_dropped_or_not_understood_is_said_with_its_place() {
        let notes: Vec<_> = ini("hosts.ini", INI).notes.lines().collect();
        for said in [
            &["hosts.ini:7:", "Web_X", "web-x"][..],
            &["speed", "dropped"],
            &["ansible_password", "secret", "dropped"],
            &["win ", "winrm", "skipped"],
            &["expr", "dropped"],
            &["[odd:something]", "skipped"],
        ] {
            let is_it = |note: &String| said.iter().all(|word| note.contains(word));
            assert!(notes.iter().any(is_it), "{said:?}: {notes:#?}");
        }
        assert!(!notes.iter().any(|note| note.contains("hunter2")), "no secret is shown");
    }

    #[test]
    fn the_same_inventory_as_yaml_gives_the_same_machines() {
        let text = r#"
all:
  hosts:
    lonely: {ansible_host: 192.0.2.9}
  children:
    prod:
      vars: {tier: any, site: east, list: [1]}
      children:
        web:
          hosts:
            web[01:02].example.com: {rack: r1, ansible_user: admin}
          vars: {tier: front, ansible_ssh_common_args: "-J joe@gate.example:2200 -o StrictHostKeyChecking=no"}
        db:
          hosts:
            db1: {zone: z1, tier: data, ansible_port: 2222}
"#;
        let documents = crate::package::source::documents(text).unwrap();
        assert!(is_inventory(&documents[0]));
        let (yaml, ini) = (yaml("hosts.yaml", &documents[0]), ini("hosts.ini", INI));
        for name in ["lonely", "web01.example.com", "web02.example.com"] {
            let place = |host: &Candidate| Candidate { place: String::new(), ..host.clone() };
            assert_eq!(place(by_name(&yaml, name)), place(by_name(&ini, name)), "{name}");
        }
        assert_eq!(by_name(&yaml, "db1").port, Some(2222));
        assert!(yaml.notes.lines().any(|note| note.contains("variable list")));
    }

    #[test]
    fn ranges_are_those_of_ansible() {
        assert_eq!(expand("a[1:3]").unwrap(), ["a1", "a2", "a3"]);
        assert_eq!(expand("a[08:10:2]x").unwrap(), ["a08x", "a10x"]);
        assert_eq!(expand("[a:b][1:2]").unwrap(), ["a1", "a2", "b1", "b2"]);
        for bad in ["a[3:1]", "a[1]", "a[", "a[1:2", "a[x:1]", "a[1:99999][1:99999]"] {
            assert_eq!(expand(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_simple_ways_through_other_hosts_are_understood() {
        assert_eq!(jumps("-o ProxyCommand='ssh -W %h:%p gate'"), None);
        assert_eq!(jumps("-oProxyJump=a,b").unwrap().len(), 2);
        assert_eq!(jumps("-o ControlMaster=auto -o ControlPersist=60s"), Some(vec![]));
        assert_eq!(jumps("-F other_config"), None);
    }
}
