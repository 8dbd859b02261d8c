//! Skips the comparison of objects that did not change since they were found to be as declared: most passes are triggered by pods, and change no
//! object.

use std::hash::Hasher;
use std::io;
use std::sync::Arc;

use fleetwright_api::ClusterPackageVersionSpec;
use serde::Serialize;

use super::objects::Kind;
use super::observed::Observed;

/// A component whose objects were all as declared. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct UnchangedComponent {
    /// Content hash of all inputs.
    from: u64,
    /// The objects, with the content hash of each.
    objects: Arc<[(Kind, Box<str>, u64)]>,
    /// The digest of the pod template.
    pub(super) template: Arc<str>,
}

impl UnchangedComponent {
    /// A component with these objects; `None` if one of them does not exist.
    pub(super) fn of<'a>(
        seen: &Observed,
        from: u64,
        objects: impl Iterator<Item = (Kind, &'a str)>,
        template: &str,
    ) -> Option<Self> {
        let objects = objects.map(|(kind, name)| Some((kind, name.into(), seen.print(kind, name)?)));
        Some(Self { from, objects: objects.collect::<Option<_>>()?, template: template.into() })
    }

    /// Whether neither the inputs nor the objects have changed since.
    pub(super) fn still(&self, seen: &Observed, from: u64) -> bool {
        self.from == from && self.objects.iter().all(|(kind, name, print)| seen.print(*kind, name) == Some(*print))
    }
}

/// Content hashes of the inputs of objects, each computed once in a pass.
pub(super) struct InputHashes<'a> {
    cluster: u64,
    packages: Vec<(&'a str, u64)>,
}

impl<'a> InputHashes<'a> {
    /// The hash of the inputs of all components: the cluster's name, its spec, and `more`.
    pub(super) fn of(seen: &Observed, more: impl Serialize) -> Self {
        let names = (&seen.names.fleet, &seen.names.name, &seen.names.namespace);
        let began = seen.status.package_version.is_some();
        Self { cluster: content_hash(&(names, &seen.spec, began, more)), packages: Vec::new() }
    }

    /// The hash with a package version, and `more`.
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

/// Content hash of a value, comparable within a process.
pub fn content_hash(value: &impl Serialize) -> u64 {
    let mut into = HashWriter::default();
    // Only a map with keys that are no strings fails, and there is none.
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
