//! The printer columns of a custom resource.

use jiff::Timestamp;
use serde_json::Value;

use fleetwright_builtins::printers::human_duration;
use fleetwright_schema::text;

use super::json_path::JsonPath;
use crate::column::Column;

const NAME: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
const CREATED: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

/// The columns after the name, each with the path of its value.
pub(super) struct Columns(Vec<(Column, JsonPath)>);

impl Columns {
    /// Reads `additionalPrinterColumns`; the default is the age.
    pub fn read(definitions: &Value) -> Result<Self, String> {
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let mut columns = Vec::new();
        for definition in definitions.as_array().into_iter().flatten() {
            let path = definition["jsonPath"].as_str().unwrap_or("");
            let parsed =
                JsonPath::parse(path).map_err(|_| format!("unrecognized column definition {}", text::quote(path)))?;
            let description = match definition["description"].as_str().unwrap_or("") {
                "" => format!("Custom resource definition column (in JSONPath format): {path}"),
                given => given.to_owned(),
            };
            let column = Column {
                name: text(&definition["name"]),
                ty: text(&definition["type"]),
                format: text(&definition["format"]),
                description,
                priority: definition["priority"].as_i64().unwrap_or(0),
            };
            columns.push((column, parsed));
        }
        if columns.is_empty() {
            let age = Column {
                name: "Age".into(),
                ty: "date".into(),
                format: String::new(),
                description: CREATED.into(),
                priority: 0,
            };
            columns.push((age, JsonPath::parse(".metadata.creationTimestamp")?));
        }
        Ok(Self(columns))
    }

    /// The headings, the name's first.
    pub fn headings(&self) -> Vec<Column> {
        let name = Column {
            name: "Name".into(),
            ty: "string".into(),
            format: "name".into(),
            description: NAME.into(),
            priority: 0,
        };
        std::iter::once(name).chain(self.0.iter().map(|(column, _)| column.clone())).collect()
    }

    /// The cells of an object's row.
    pub fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let name = object["metadata"]["name"].as_str().unwrap_or("").into();
        let cells = self.0.iter().map(|(column, path)| cell(&column.ty, path.first(object), now));
        std::iter::once(name).chain(cells).collect()
    }
}

/// A value in the type of its column; null where it is missing or of another type.
fn cell(ty: &str, value: Option<&Value>, now: Timestamp) -> Value {
    match (ty, value) {
        ("string", Some(Value::String(_))) => value.cloned().unwrap_or_default(),
        ("string", Some(Value::Number(number))) => text::number(number).into(),
        ("string", Some(Value::Null)) => "<no value>".into(),
        ("string", Some(value)) => value.to_string().into(),
        ("integer", Some(Value::Number(number))) => match number.as_i64() {
            Some(int) => int.into(),
            None => number.as_f64().map_or(Value::Null, |real| (real as i64).into()),
        },
        ("number", Some(Value::Number(number))) => Value::Number(number.clone()),
        ("boolean", Some(Value::Bool(flag))) => (*flag).into(),
        ("date", Some(Value::String(time))) => age(time, now).into(),
        _ => Value::Null,
    }
}

/// The age in the notation of kubectl.
fn age(time: &str, now: Timestamp) -> String {
    if time.is_empty() {
        return "<unknown>".to_owned();
    }
    match time.parse::<Timestamp>() {
        Ok(then) => human_duration(now.duration_since(then).as_secs()),
        Err(_) => "<invalid>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_type_shows_its_values_and_nothing_else() {
        let columns = Columns::read(&json!([
            {"name": "N", "type": "integer", "jsonPath": ".spec.n"},
            {"name": "S", "type": "string", "jsonPath": ".spec.n"},
            {"name": "L", "type": "string", "jsonPath": ".spec.l", "priority": 1},
            {"name": "Bad", "type": "integer", "jsonPath": ".spec.l"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
            {"name": "Gone", "type": "string", "jsonPath": ".spec.gone"},
            {"name": "Null", "type": "string", "jsonPath": ".spec.null"}
        ]))
        .unwrap();
        let object = json!({"metadata": {"name": "a", "creationTimestamp": "1970-01-01T00:00:00Z"}, "spec": {"n": 3, "l": [1], "null": null}});
        let now = Timestamp::from_second(3600).unwrap();
        assert_eq!(json!(columns.row(&object, now)), json!(["a", 3, "3", "[1]", null, "60m", null, "<no value>"]));
        assert_eq!(columns.headings()[3].priority, 1);
    }

    #[test]
    fn without_columns_there_is_the_age() {
        let columns = Columns::read(&Value::Null).unwrap();
        assert_eq!(columns.headings().iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["Name", "Age"]);
    }
}
