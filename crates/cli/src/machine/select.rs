//! Selects the machines of a command.

use fleetwright_api::Machine;
use kube::api::ListParams;

use crate::cluster::Cluster;
use crate::target;

/// One or more machines, by name or by labels.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct MachineSelection {
    /// Names of the machines.
    #[arg(value_name = "NAME", required_unless_present_any = ["selector", "all"], conflicts_with_all = ["selector", "all"], value_parser = name)]
    names: Vec<String>,

    /// Label selector, such as `rack=r3,tier!=test`.
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "all")]
    selector: Option<String>,

    /// Select all machines of the namespace.
    #[arg(long)]
    all: bool,

    /// Namespace of the machines. [default: that of the context, else fleet]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = crate::install::namespace)]
    namespace: Option<String>,
}

/// A machine's name, optionally with its type: `machine/x`.
pub(super) fn name(text: &str) -> Result<String, String> {
    crate::target::bare_name::<Machine>(text)
}

impl MachineSelection {
    /// The namespace of the machines.
    pub(super) fn namespace<'a>(&'a self, cluster: &'a Cluster) -> &'a str {
        cluster.namespace_or(self.namespace.as_deref())
    }

    /// The machines, in the given order or by name.
    ///
    /// # Errors
    /// A named machine does not exist, or none matches the labels; the error names the namespace.
    pub(super) async fn fetch(&self, cluster: &Cluster) -> anyhow::Result<Vec<Machine>> {
        let namespace = self.namespace(cluster);
        if self.names.is_empty() {
            let mut params = ListParams::default();
            params.label_selector.clone_from(&self.selector);
            let mut found = crate::why::all::<Machine>(cluster, namespace, params).await?;
            found.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
            if let (true, Some(selector)) = (found.is_empty(), &self.selector) {
                anyhow::bail!(
                    "no machines with {selector} found in namespace {namespace}; pass another namespace with -n"
                );
            }
            return Ok(found);
        }
        let mut found = Vec::new();
        for name in &self.names {
            found.push(target::one(cluster, namespace, name).await?);
        }
        Ok(found)
    }
}
