//! Which machines a command is about.

use fleetwright_api::Machine;
use kube::Api;
use kube::api::ListParams;

use crate::cluster::{Cluster, is_not_found};

/// One or more machines, by name or by labels.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Which {
    /// Machines, by name.
    #[arg(value_name = "NAME", required_unless_present_any = ["selector", "all"], conflicts_with_all = ["selector", "all"], value_parser = name)]
    names: Vec<String>,

    /// Those with these labels, such as `rack=r3,tier!=test`.
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "all")]
    selector: Option<String>,

    /// All of them.
    #[arg(long)]
    all: bool,

    /// The namespace they are in. [default: the context's, else fleet]
    #[arg(short, long, value_name = "NAME", value_parser = crate::install::namespace)]
    namespace: Option<String>,
}

/// A machine's name, also with its type in front: `machine/x`.
pub(super) fn name(text: &str) -> Result<String, String> {
    let name = match text.split_once('/') {
        None => text,
        Some(("machine" | "machines" | "ma" | "machines.fleetwright.io" | "machine.fleetwright.io", name)) => name,
        Some(_) => return Err("write the machine's name, or machine/NAME".into()),
    };
    if name.is_empty() || name.contains('/') {
        Err("write the machine's name, or machine/NAME".into())
    } else {
        Ok(name.to_owned())
    }
}

impl Which {
    /// The namespace to look in.
    pub(super) fn namespace<'a>(&'a self, cluster: &'a Cluster) -> &'a str {
        cluster.namespace_or(self.namespace.as_deref())
    }

    /// The machines, in the order given or of their names.
    ///
    /// # Errors
    /// One that is named is not there, or none has these labels; says where it was looked for.
    pub(super) async fn fetch(&self, cluster: &Cluster) -> anyhow::Result<Vec<Machine>> {
        let namespace = self.namespace(cluster);
        if self.names.is_empty() {
            let mut params = ListParams::default();
            params.label_selector.clone_from(&self.selector);
            let mut found = crate::why::all::<Machine>(cluster, namespace, params).await?;
            found.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
            if let (true, Some(selector)) = (found.is_empty(), &self.selector) {
                anyhow::bail!("no machine in namespace {namespace} has {selector}; pass -n for another namespace");
            }
            return Ok(found);
        }
        let mut found = Vec::new();
        for name in &self.names {
            found.push(one(cluster, namespace, name).await?);
        }
        Ok(found)
    }
}

/// One machine.
///
/// # Errors
/// It is not there; says where it was looked for.
pub(super) async fn one(cluster: &Cluster, namespace: &str, name: &str) -> anyhow::Result<Machine> {
    let api: Api<Machine> = Api::namespaced(cluster.client.clone(), namespace);
    match api.get(name).await {
        Ok(machine) => Ok(machine),
        Err(error) if is_not_found(&error) => {
            anyhow::bail!("machine {name:?} not found in namespace {namespace}; pass -n for another one")
        }
        Err(error) => Err(cluster.explain(error)),
    }
}
