//! Tables (CSV) and plain lists (YAML) of hosts.

use serde_json::Value;

use super::candidate::{Candidate, Hop, ImportNotes, Imported, is_label_key, is_label_value, object_name};
use crate::package::source::SourceTree;

/// The names of columns and fields, for messages.
const FIELDS: &str = "name, address (several with spaces), hostname, port, user, role, serial, model, rack, zone, providerID, hostKeys (several with ;), keySecret, jump, labels (a=b;c=d), label:NAME and nodeLabel:NAME";

/// Parses a table whose first row names the columns.
///
/// # Errors
/// The header row or the name column is missing; the error lists the allowed columns.
pub(super) fn csv(file: &str, text: &str) -> Result<Imported, String> {
    let mut rows = rows(text).map_err(|(line, said)| format!("{file}:{line}: {said}"))?.into_iter();
    let Some((_, header)) = rows.next() else {
        return Err(format!("{file} is empty; the first row must name the columns: {FIELDS}"));
    };
    let header: Vec<_> = header.iter().map(|name| name.trim().to_owned()).collect();
    if !header.iter().any(|name| name.eq_ignore_ascii_case("name")) {
        return Err(format!("{file}:1: column name not found; the first row must name the columns: {FIELDS}"));
    }
    let mut imported = Imported::default();
    for (line, row) in rows {
        let place = format!("{file}:{line}");
        if row.len() > header.len() {
            imported
                .notes
                .say(&place, format!("{} values for {} columns: the last ones are dropped", row.len(), header.len()));
        }
        let fields = header.iter().cloned().zip(row.into_iter().map(|value| value.trim().to_owned()));
        imported.hosts.extend(host(&place, fields, &mut imported.notes));
    }
    Ok(imported)
}

/// Parses a list of hosts in YAML, each a map.
pub(super) fn list(file: &str, tree: &SourceTree) -> Imported {
    let mut imported = Imported::default();
    for item in tree.items() {
        let place = format!("{file}:{}", item.line);
        if let Some(name) = item.text() {
            imported.hosts.extend(host(
                &place,
                [("name".to_owned(), name.to_owned())].into_iter(),
                &mut imported.notes,
            ));
            continue;
        }
        let mut fields = Vec::new();
        for (key, value) in item.entries() {
            let scalar = |tree: &SourceTree| match tree.value() {
                Value::String(text) => text,
                Value::Null => String::new(),
                other => other.to_string(),
            };
            match key.as_str() {
                "labels" | "nodeLabels" => {
                    let word = key.trim_end_matches('s');
                    fields
                        .extend(value.entries().iter().map(|(name, value)| (format!("{word}:{name}"), scalar(value))));
                }
                "addresses" | "address" | "hostKeys" | "jump" | "jumps" if !value.items().is_empty() => {
                    let glue = if key == "hostKeys" { ";" } else { " " };
                    let texts: Vec<_> = value.items().iter().map(scalar).collect();
                    fields.push((key.clone(), texts.join(glue)));
                }
                "hardware" => fields.extend(value.entries().iter().map(|(name, value)| (name.clone(), scalar(value)))),
                _ if !value.entries().is_empty() || !value.items().is_empty() => {
                    imported.notes.say(
                        &place,
                        format!("the field {key} cannot be a list or a map: dropped; known fields: {FIELDS}"),
                    );
                }
                _ => fields.push((key.clone(), scalar(value))),
            }
        }
        imported.hosts.extend(host(&place, fields.into_iter(), &mut imported.notes));
    }
    imported
}

fn host(place: &str, fields: impl Iterator<Item = (String, String)>, notes: &mut ImportNotes) -> Option<Candidate> {
    let mut host = Candidate { place: place.to_owned(), ..Candidate::default() };
    for (field, value) in fields.filter(|(_, value)| !value.is_empty()) {
        let some = Some(value.clone());
        if let Some((kind, name)) = field.split_once(':') {
            let labels = match kind.to_lowercase().as_str() {
                "label" => &mut host.labels,
                "nodelabel" => &mut host.node_labels,
                _ => {
                    notes.say(place, format!("unknown column {field}: dropped; known columns: {FIELDS}"));
                    continue;
                }
            };
            if is_label_key(name) && is_label_value(&value) {
                labels.insert(name.to_owned(), value);
            } else {
                notes.say(place, format!("{name}={value} is not a valid label: dropped"));
            }
            continue;
        }
        match field.to_lowercase().as_str() {
            "name" => {
                host.name = object_name(&value);
                if host.name != value {
                    notes.say(place, format!("{value} is not a valid object name; renamed to {}", host.name));
                }
            }
            "address" | "addresses" => {
                host.addresses = value.split([' ', ';']).filter(|part| !part.is_empty()).map(str::to_owned).collect()
            }
            "hostname" => host.hostname = some,
            "port" => match value.parse::<u16>() {
                Ok(port) if port > 0 => host.port = Some(port),
                _ => notes.say(place, format!("invalid port {value}; using 22")),
            },
            "user" => host.user = some,
            "role" => match serde_json::from_value(Value::String(value.clone())) {
                Ok(role) => host.role = role,
                Err(_) => {
                    notes.say(place, format!("invalid role {value}, must be Worker or ControlPlane; using Worker"))
                }
            },
            "serial" => host.hardware.serial = some,
            "model" => host.hardware.model = some,
            "rack" | "zone" if !is_label_value(&value) => {
                notes.say(place, format!("the {field} {value} is not a valid label: dropped"))
            }
            "rack" => host.hardware.rack = some,
            "zone" => host.hardware.zone = some,
            "providerid" => host.provider_id = some,
            "hostkeys" | "hostkey" => {
                host.host_keys =
                    value.split(';').map(|key| key.trim().to_owned()).filter(|key| !key.is_empty()).collect()
            }
            "keysecret" => host.key_secret = some,
            "jump" | "jumps" => {
                match value.split([' ', ',']).filter(|hop| !hop.is_empty()).map(Hop::parse).collect::<Option<Vec<_>>>()
                {
                    Some(hops) => host.jumps = hops,
                    None => notes.say(place, format!("invalid jump host {value}: write USER@HOST:PORT")),
                }
            }
            "labels" => {
                for label in value.split(';').map(str::trim).filter(|label| !label.is_empty()) {
                    match label.split_once('=').filter(|(key, value)| is_label_key(key) && is_label_value(value)) {
                        Some((key, value)) => drop(host.labels.insert(key.to_owned(), value.to_owned())),
                        None => notes.say(place, format!("{label} is not a valid label: dropped")),
                    }
                }
            }
            _ => notes.say(place, format!("unknown column {field}: dropped; known columns: {FIELDS}")),
        }
    }
    if host.name.is_empty() {
        notes.say(place, "no name: skipped");
        return None;
    }
    if host.addresses.is_empty() {
        host.addresses = vec![host.hostname.clone().unwrap_or_else(|| host.name.clone())];
    }
    Some(host)
}

type Row = (usize, Vec<String>);

/// The rows with the number of their first line. Values may be in double quotes, with doubled quotes inside; `;` or tabs may separate them.
fn rows(text: &str) -> Result<Vec<Row>, (usize, String)> {
    let first = text.lines().next().unwrap_or_default();
    let separator = [',', '\t', ';']
        .into_iter()
        .max_by_key(|c| first.matches(*c).count())
        .filter(|c| first.contains(*c))
        .unwrap_or(',');
    let (mut found, mut row, mut value) = (Vec::new(), Vec::new(), String::new());
    let (mut quoted, mut line, mut began) = (false, 1, 1);
    let mut rest = text.trim_start_matches('\u{feff}').chars().peekable();
    while let Some(c) = rest.next() {
        if c == '\n' {
            line += 1;
        }
        match c {
            '"' if quoted && rest.peek() == Some(&'"') => {
                rest.next();
                value.push('"');
            }
            '"' if quoted => quoted = false,
            _ if quoted => value.push(c),
            '"' if value.trim().is_empty() => {
                value.clear();
                quoted = true;
            }
            '\r' => {}
            '\n' => {
                row.push(std::mem::take(&mut value));
                let whole = std::mem::take(&mut row);
                if whole.iter().any(|value| !value.trim().is_empty()) && !whole[0].starts_with('#') {
                    found.push((began, whole));
                }
                began = line;
            }
            c if c == separator => row.push(std::mem::take(&mut value)),
            c => value.push(c),
        }
    }
    if quoted {
        return Err((began, "unclosed quote".to_owned()));
    }
    if !value.is_empty() || !row.is_empty() {
        row.push(value);
        found.push((began, row));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_becomes_machines() {
        let text = "name,address,rack,label:tier,labels,colour,role\nhost-1,10.0.0.1,r1,\"front\",a=b;c=d,red,Worker\n\"host-2\",10.0.0.2 fd00::2,,,,,ControlPlane\n,x,,,,,\n";
        let imported = csv("hosts.csv", text).unwrap();
        let [first, second] = imported.hosts.as_slice() else { panic!("{imported:#?}") };
        assert_eq!((first.name.as_str(), first.place.as_str()), ("host-1", "hosts.csv:2"));
        assert_eq!(
            first.labels.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>(),
            ["a=b", "c=d", "tier=front"]
        );
        assert_eq!(first.hardware.rack.as_deref(), Some("r1"));
        assert_eq!(second.addresses, ["10.0.0.2", "fd00::2"]);
        assert_eq!(format!("{:?}", second.role), "ControlPlane");
        let notes: Vec<_> = imported.notes.lines().collect();
        assert!(notes.iter().any(|note| note.contains("colour")), "{notes:#?}");
        assert!(notes.iter().any(|note| note.starts_with("hosts.csv:4:")), "{notes:#?}");
    }

    #[test]
    fn quotes_and_other_separators_are_read() {
        let rows = rows("a;b\n\"x;\"\"y\"\"\nz\";2\r\n\n# no\n").unwrap();
        assert_eq!(
            rows,
            [(1, vec!["a".to_owned(), "b".to_owned()]), (2, vec!["x;\"y\"\nz".to_owned(), "2".to_owned()])]
        );
        assert!(super::rows("a,b\n\"x\n").is_err());
        assert!(csv("x.csv", "host,b\n").unwrap_err().starts_with("x.csv:1:"));
    }

    #[test]
    fn a_list_becomes_machines() {
        let text = "- name: host-1\n  address: 10.0.0.1\n  port: 2222\n  labels: {rack: r1, bad: 'a b'}\n  hardware: {zone: z1}\n  jumps: [joe@gate]\n- host-2\n- {name: host-3, nested: {a: b}}\n";
        let documents = crate::package::source::documents(text).unwrap();
        let imported = list("hosts.yaml", &documents[0]);
        let [first, second, _] = imported.hosts.as_slice() else { panic!("{imported:#?}") };
        assert_eq!((first.port, first.labels["rack"].as_str(), first.jumps.len()), (Some(2222), "r1", 1));
        assert_eq!(first.hardware.zone.as_deref(), Some("z1"));
        assert_eq!(second.addresses, ["host-2"]);
        let notes: Vec<_> = imported.notes.lines().collect();
        assert!(notes.iter().any(|note| note.contains("bad=a b")), "{notes:#?}");
        assert!(notes.iter().any(|note| note.contains("field nested")), "{notes:#?}");
    }
}
