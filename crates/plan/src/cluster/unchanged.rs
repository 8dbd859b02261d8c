//! What was found to be right is not made anew to be compared once more: most passes come of pods, and change nothing of the objects.

use std::hash::Hasher;
use std::io;
use std::sync::Arc;

use fleetwright_api::ClusterPackageVersionSpec;
use serde::Serialize;

use super::objects::Kind;
use super::observed::Observed;

/// A component all of whose objects were as they should be. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct UnchangedComponent {
    /// Of all that they are made from.
    from: u64,
    /// What they are, and what they said.
    objects: Arc<[(Kind, Box<str>, u64)]>,
    /// The digest of its pods' template.
    pub(super) template: Arc<str>,
}

impl UnchangedComponent {
    /// With these objects; none if one of them is not there.
    pub(super) fn of<'a>(
        seen: &Observed,
        from: u64,
        objects: impl Iterator<Item = (Kind, &'a str)>,
        template: &str,
    ) -> Option<Self> {
        let objects = objects.map(|(kind, name)| Some((kind, name.into(), seen.print(kind, name)?)));
        Some(Self { from, objects: objects.collect::<Option<_>>()?, template: template.into() })
    }

    /// Whether nothing has changed since.
    pub(super) fn still(&self, seen: &Observed, from: u64) -> bool {
        self.from == from && self.objects.iter().all(|(kind, name, print)| seen.print(*kind, name) == Some(*print))
    }
}

/// The prints of what objects are made from, each taken once in a pass.
pub(super) struct InputHashes<'a> {
    cluster: u64,
    packages: Vec<(&'a str, u64)>,
}

impl<'a> InputHashes<'a> {
    /// What all components are made from: the cluster's name, what is declared, and this.
    pub(super) fn of(seen: &Observed, more: impl Serialize) -> Self {
        let names = (&seen.names.fleet, &seen.names.name, &seen.names.namespace);
        let began = seen.status.package_version.is_some();
        Self { cluster: content_hash(&(names, &seen.spec, began, more)), packages: Vec::new() }
    }

    /// With a package version, and this.
    pub(super) fn with(&mut self, package: (&'a str, &ClusterPackageVersionSpec), more: impl Serialize) -> u64 {
        let known = self.packages.iter().find(|(name, _)| *name == package.0).map(|(_, print)| *print);
        let known = known.unwrap_or_else(|| {
            let print = content_hash(&package);
            self.packages.push((package.0, print));
            print
        });
        content_hash(&(self.cluster, known, more))
    }
}

/// A number that tells two values apart, within a process.
pub fn content_hash(value: &impl Serialize) -> u64 {
    let mut into = HashWriter::default();
    // Only a map whose keys are no texts fails, and there is none.
    let written = serde_json::to_writer(&mut into, value);
    debug_assert!(written.is_ok(), "{written:?}");
    into.0.finish()
}

#[derive(Default)]
struct HashWriter(std::hash::DefaultHasher);

impl io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
