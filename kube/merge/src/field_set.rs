//! Sets of field paths, and their FieldsV1 form in `metadata.managedFields`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::path::PathElement;

/// A set of field paths, kept as a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(pub(crate) BTreeMap<PathElement, Node>);

/// The members of a set at and below one path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    /// The path itself is in the set.
    pub(crate) member: bool,
    /// Longer paths in the set.
    pub(crate) children: FieldSet,
}

impl Node {
    fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }
}

impl FieldSet {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A set of paths of plain fields: `&[&["spec", "replicas"]]`.
    #[must_use]
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::new();
        for path in paths {
            let path: Vec<PathElement> = path.iter().map(|name| PathElement::field(name)).collect();
            set.insert(&path);
        }
        set
    }

    /// Whether no path is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.values().all(Node::is_empty)
    }

    /// Adds a path. The empty path is never a member.
    pub fn insert(&mut self, path: &[PathElement]) {
        let Some((first, rest)) = path.split_first() else { return };
        if !self.0.contains_key(first) {
            self.0.insert(first.clone(), Node::default());
        }
        if let Some(node) = self.0.get_mut(first) {
            if rest.is_empty() {
                node.member = true;
            } else {
                node.children.insert(rest);
            }
        }
    }

    /// Whether exactly this path is in the set.
    #[must_use]
    pub fn has(&self, path: &[PathElement]) -> bool {
        let Some((first, rest)) = path.split_first() else { return false };
        self.0.get(first).is_some_and(|node| if rest.is_empty() { node.member } else { node.children.has(rest) })
    }

    /// The paths that are in either set.
    #[must_use]
    pub fn union(mut self, other: &Self) -> Self {
        self.add(other);
        self
    }

    /// Adds all paths of the other set.
    pub fn add(&mut self, other: &Self) {
        for (element, theirs) in &other.0 {
            match self.0.get_mut(element) {
                Some(node) => {
                    node.member |= theirs.member;
                    node.children.add(&theirs.children);
                }
                None => {
                    self.0.insert(element.clone(), theirs.clone());
                }
            }
        }
    }

    /// The paths that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let both = self.0.iter().filter_map(|(element, node)| {
            let theirs = other.0.get(element)?;
            let node =
                Node { member: node.member && theirs.member, children: node.children.intersection(&theirs.children) };
            (!node.is_empty()).then(|| (element.clone(), node))
        });
        Self(both.collect())
    }

    /// The paths of this set that are not in the other one; what lies below a removed path stays.
    #[must_use]
    pub fn difference(mut self, other: &Self) -> Self {
        self.subtract(other, false);
        self
    }

    /// As [`FieldSet::difference`], but a path of the other set also takes away all that lies below it.
    #[must_use]
    pub fn recursive_difference(mut self, other: &Self) -> Self {
        self.subtract(other, true);
        self
    }

    fn subtract(&mut self, other: &Self, recursive: bool) {
        for (element, theirs) in &other.0 {
            let Some(node) = self.0.get_mut(element) else { continue };
            if theirs.member {
                node.member = false;
                if recursive {
                    node.children.0.clear();
                }
            }
            node.children.subtract(&theirs.children, recursive);
            if node.is_empty() {
                self.0.remove(element);
            }
        }
    }

    /// The paths that no other path of the set goes through.
    #[must_use]
    pub fn leaves(&self) -> Self {
        let leaves = self.0.iter().filter(|(_, node)| !node.is_empty()).map(|(element, node)| {
            let leaf = Node { member: node.member && node.children.is_empty(), children: node.children.leaves() };
            (element.clone(), leaf)
        });
        Self(leaves.collect())
    }

    /// Every path, the shorter ones first.
    #[must_use]
    pub fn paths(&self) -> Vec<Vec<PathElement>> {
        let mut paths = Vec::new();
        self.collect_paths(&mut Vec::new(), &mut paths);
        paths
    }

    fn collect_paths(&self, prefix: &mut Vec<PathElement>, paths: &mut Vec<Vec<PathElement>>) {
        for (element, _) in self.0.iter().filter(|(_, node)| node.member) {
            let mut path = prefix.clone();
            path.push(element.clone());
            paths.push(path);
        }
        for (element, node) in &self.0 {
            prefix.push(element.clone());
            node.children.collect_paths(prefix, paths);
            prefix.pop();
        }
    }

    /// Reads FieldsV1.
    ///
    /// # Errors
    /// The error for a value that is not FieldsV1.
    pub fn from_fields_v1(value: &Value) -> Result<Self, String> {
        Ok(read(value)?.0)
    }

    /// The FieldsV1 form.
    #[must_use]
    pub fn to_fields_v1(&self) -> Value {
        Value::Object(self.write())
    }

    fn write(&self) -> Map<String, Value> {
        let mut object = Map::new();
        for (element, node) in self.0.iter().filter(|(_, node)| !node.is_empty()) {
            let mut inner = node.children.write();
            if node.member && !inner.is_empty() {
                inner.insert(".".to_owned(), Value::Object(Map::new()));
            }
            object.insert(element.encode(), Value::Object(inner));
        }
        object
    }

    /// Whether any path of the set lies at or below one of the other's paths, or the other way round. A cheap
    /// first look: `false` means that neither intersection nor difference would do anything.
    #[must_use]
    pub fn touches(&self, other: &Self) -> bool {
        other.0.iter().any(|(element, theirs)| {
            self.0
                .get(element)
                .is_some_and(|node| (node.member && theirs.member) || node.children.touches(&theirs.children))
        })
    }
}

impl FieldSet {
    /// Whether encoded fields could have anything at or around one of this set's paths, found without decoding them.
    pub(crate) fn may_touch(&self, fields: &Value) -> bool {
        self.0.iter().any(|(element, node)| {
            fields.get(element.encode()).is_some_and(|inner| node.member || node.children.may_touch(inner))
        })
    }
}

/// Reads the paths below one path, and whether that path is a member: an object that names nothing stands for the
/// path itself.
fn read(value: &Value) -> Result<(FieldSet, bool), String> {
    let object = match value {
        Value::Null => return Ok((FieldSet::new(), true)),
        Value::Object(object) => object,
        other => {
            return Err(format!(
                "expected {{ or n, but found {}",
                other.to_string().chars().take(20).collect::<String>()
            ));
        }
    };
    let mut set = FieldSet::new();
    let mut member = false;
    for (key, inner) in object {
        if key == "." {
            member = true;
            continue;
        }
        let Some(element) = PathElement::decode(key).map_err(|e| format!("parsing key as path element: {e}"))? else {
            continue;
        };
        let (children, is_member) = read(inner)?;
        set.0.insert(element, Node { member: is_member, children });
    }
    let nothing_below = set.0.is_empty();
    Ok((set, member || nothing_below))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(value: Value) -> FieldSet {
        FieldSet::from_fields_v1(&value).expect("fields")
    }

    #[test]
    fn fields_v1_survives_a_round_trip() {
        let fields = json!({
            "f:spec": {
                "f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}},
                "f:finalizers": {"v:\"a\"": {}},
                "f:list": {"i:0": {}},
            },
        });
        assert_eq!(set(fields.clone()).to_fields_v1(), fields);
    }

    #[test]
    fn broken_fields_v1_is_an_error() {
        for bad in [
            json!({"x": {}}),
            json!({"fspec": {}}),
            json!({"f:a": 3}),
            json!({"k:{": {}}),
            json!({"i:x": {}}),
            json!({"é": {}}),
        ] {
            assert!(FieldSet::from_fields_v1(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn unknown_kinds_of_path_elements_are_skipped() {
        assert_eq!(set(json!({"f:a": {}, "q:b": {}})), set(json!({"f:a": {}})));
    }

    #[test]
    fn a_difference_keeps_what_lies_below_and_a_recursive_one_does_not() {
        let a = set(json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}}));
        let b = set(json!({"f:a": {}}));
        assert_eq!(a.clone().difference(&b), set(json!({"f:a": {"f:b": {}}, "f:c": {}})));
        assert_eq!(a.recursive_difference(&b), set(json!({"f:c": {}})));
    }

    #[test]
    fn union_and_intersection_work_on_members_only() {
        let a = set(json!({"f:a": {".": {}, "f:b": {}}}));
        let b = set(json!({"f:a": {"f:b": {}, "f:c": {}}}));
        assert_eq!(a.intersection(&b), set(json!({"f:a": {"f:b": {}}})));
        assert_eq!(a.union(&b), set(json!({"f:a": {".": {}, "f:b": {}, "f:c": {}}})));
    }

    #[test]
    fn leaves_are_the_paths_that_nothing_goes_through() {
        let a = set(json!({"f:a": {".": {}, "f:b": {}}}));
        assert_eq!(a.leaves().paths().len(), 1);
        assert!(a.leaves().has(&[PathElement::field("a"), PathElement::field("b")]));
    }
}
