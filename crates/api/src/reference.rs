//! Generates the reference page from the definitions.

use serde_json::Value;

use crate::{crds, report, text};

/// Returns the kinds with their fields, defaults and limits as Markdown.
pub fn kinds_markdown() -> String {
    let mut out = String::from(INTRODUCTION);
    for (word, message) in text::WORDS {
        line(&mut out, &format!("| {word} | {} |", message.trim_start_matches("must be ")));
    }
    for crd in crds() {
        let crd = serde_json::to_value(crd).expect("a definition is JSON");
        kind(&crd, &mut out);
    }
    let machine = crds().into_iter().find(|crd| crd.spec.names.kind == "Machine");
    let machine = serde_json::to_value(machine).expect("a definition is JSON");
    let condition = &schema(&machine)["properties"]["status"]["properties"]["conditions"]["items"];
    out.push_str(CONDITIONS);
    table(&[("", condition)], Rules::default(), &mut out);
    out.push_str(&report::reference());
    out
}

const INTRODUCTION: &str = "\
<!-- Generated from crates/api; `make generate` makes it again. -->
# Kinds

Everything is in the group `fleetwright.io/v1alpha1` and belongs to a namespace; references are names in the same namespace.
`kubectl get fleet` lists all kinds at once, `kubectl explain machine.spec` says what stands here, and
[deploy/crds.yaml](../../deploy/crds.yaml) holds the definitions. What an object may not say is refused when it is written, with the
field and what is allowed. People write `spec`, operators write `status`.

| word | what is allowed |
|---|---|
";

const CONDITIONS: &str = "
## Conditions

What `status.conditions` holds, in every kind: as Kubernetes has it, with the reporter added. `kubectl wait
--for=condition=Schedulable machine/NAME` waits for one.

";

fn schema(crd: &Value) -> &Value {
    &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn kind(crd: &Value, out: &mut String) {
    let names = &crd["spec"]["names"];
    let schema = schema(crd);
    let shown = |wide: bool| {
        let columns = list(&crd["spec"]["versions"][0]["additionalPrinterColumns"]);
        let wanted = columns.filter(|column| (column["priority"].as_i64().unwrap_or(0) > 0) == wide);
        wanted.map(|column| text(&column["name"])).collect::<Vec<_>>().join(", ")
    };
    let (short, example) = (text(&names["shortNames"][0]), text(&names["singular"]));
    line(out, &format!("\n## {}\n\n{}\n", text(&names["kind"]), text(&schema["description"])));
    line(out, &format!("`kubectl get {}` (short: `{short}`) shows {}; with", text(&names["plural"]), shown(false)));
    line(out, &format!("`-o wide` also {}. An example: [{example}.yaml](../examples/{example}.yaml)\n", shown(true)));
    let mut rules = Rules::default();
    rules.add("", schema);
    let (spec, status) = (&schema["properties"]["spec"], &schema["properties"]["status"]);
    rules.add("spec", spec);
    rules.add("status", status);
    let general: Vec<&str> = ["", "spec", "status"].iter().flat_map(|path| rules.of(path)).collect();
    for message in &general {
        line(out, &format!("- {}", capital(message)));
    }
    if !general.is_empty() {
        line(out, "");
    }
    table(&[("spec", spec), ("status", status)], rules, out);
}

fn line(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}

/// Messages of rules by the path of their field, which may be below the object that has the rule.
#[derive(Default)]
struct Rules(Vec<(String, String)>);

impl Rules {
    fn add(&mut self, path: &str, schema: &Value) {
        for rule in list(&schema["x-kubernetes-validations"]) {
            let field = format!("{path}{}", text(&rule["fieldPath"]));
            self.0.push((field.trim_start_matches('.').to_owned(), text(&rule["message"]).to_owned()));
        }
    }

    fn of(&self, path: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(field, _)| field == path).map(|(_, message)| message.as_str())
    }
}

fn table(roots: &[(&str, &Value)], mut rules: Rules, out: &mut String) {
    line(out, "| field | type | default | |\n|---|---|---|---|");
    for (path, schema) in roots {
        fields(path, schema, &mut rules, out);
    }
}

fn fields(path: &str, schema: &Value, rules: &mut Rules, out: &mut String) {
    let Some(properties) = schema["properties"].as_object() else { return };
    for (name, property) in properties {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let required = list(&schema["required"]).any(|field| field == name);
        let default = match &property["default"] {
            Value::Null if required => "required".to_owned(),
            Value::Null => String::new(),
            default => format!("`{default}`"),
        };
        let items = format!("{path}[]");
        rules.add(&path, property);
        rules.add(&items, &property["items"]);
        let messages: Vec<&str> =
            rules.of(&path).chain(rules.of(&items)).filter(|message| word(message).is_none()).collect();
        // Only operators need the limits of status fields.
        let limits = if path.starts_with("status.") { None } else { limits(property) };
        let meaning = meaning(property, &messages, limits);
        line(out, &format!("| `{path}` | {} | {default} | {meaning} |", kind_of(property)));
        if !is_conditions(property) {
            fields(&path, property, rules, out);
            fields(&items, &property["items"], rules, out);
        }
    }
}

/// All kinds have the same conditions, which have their own table.
fn is_conditions(schema: &Value) -> bool {
    schema["items"]["properties"]["lastTransitionTime"].is_object()
}

/// Returns the term that explains a value with this rule message.
fn word(message: &str) -> Option<&'static str> {
    let mut words = text::WORDS.iter();
    words.find(|(_, explained)| message.ends_with(explained)).map(|(word, _)| *word)
}

fn kind_of(schema: &Value) -> String {
    if is_conditions(schema) {
        return "list of [conditions](#conditions)".to_owned();
    }
    let word = list(&schema["x-kubernetes-validations"]).find_map(|rule| word(text(&rule["message"])));
    match (text(&schema["type"]), word) {
        ("array", _) => match schema["x-kubernetes-list-map-keys"].as_array() {
            Some(keys) => format!("list by {}", keys.iter().map(text).collect::<Vec<_>>().join(" and ")),
            None => format!("list of {}", kind_of(&schema["items"])),
        },
        ("object", _) if schema["additionalProperties"].is_object() => {
            format!("{} to {}", word.unwrap_or("text"), kind_of(&schema["additionalProperties"]))
        }
        (_, Some(word)) => word.to_owned(),
        ("string", _) if schema["enum"].is_array() => "one of".to_owned(),
        ("string", _) if schema["format"] == "date-time" => "time".to_owned(),
        ("string", _) => "text".to_owned(),
        (other, _) => other.to_owned(),
    }
}

fn meaning(schema: &Value, rules: &[&str], limits: Option<String>) -> String {
    let mut lines: Vec<String> = Vec::new();
    let values: Vec<&str> = list(&schema["enum"]).map(text).collect();
    for line in text(&schema["description"]).lines() {
        match line.split_once(": ").filter(|(value, _)| values.contains(value)) {
            Some((value, meaning)) => lines.push(format!("`{value}`: {meaning}")),
            None => lines.push(line.to_owned()),
        }
    }
    lines.extend(rules.iter().map(|rule| format!("{}.", capital(rule))));
    lines.extend(limits);
    // A cell of a table is one line, and `|` ends it.
    lines
        .iter()
        .map(|line| line.trim().replace('|', "\\|"))
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("<br>")
}

fn limits(schema: &Value) -> Option<String> {
    let number = |field: &str| schema[field].as_f64().map(|number| number as i64);
    let range = |least: &str, most: &str, what: &str| match (number(least), number(most)) {
        (Some(least), Some(most)) => Some(format!("{least} to {most}{what}.")),
        (None, Some(most)) => Some(format!("At most {most}{what}.")),
        _ => None,
    };
    let explained = list(&schema["x-kubernetes-validations"]).any(|rule| word(text(&rule["message"])).is_some());
    match text(&schema["type"]) {
        "integer" => range("minimum", "maximum", ""),
        "string" if !explained => range("minLength", "maxLength", " characters"),
        "array" => range("minItems", "maxItems", " entries"),
        "object" => range("minProperties", "maxProperties", " entries"),
        _ => None,
    }
}

/// Makes the first letter a capital letter, except in names such as kube-apiserver.
fn capital(text: &str) -> String {
    if text.split([' ', ',', ':']).next().is_some_and(|word| word.contains(['-', '.'])) {
        return text.to_owned();
    }
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
