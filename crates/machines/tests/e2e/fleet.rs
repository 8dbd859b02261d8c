//! A site, its Machine objects, and the operators as a process of their own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fleetwright_api::{Component, ComponentState, Machine, Status, crds_json};
use fleetwright_lab::Process;
use fleetwright_lab::hosts::{HostDescription, Site, apply};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::{NAMESPACE, built, helpers};

/// Timeout for a bare machine to become ready: the test machine is busy, and everything must be downloaded and unpacked.
pub(crate) const LONG: Duration = Duration::from_secs(900);

pub(crate) struct Fleet {
    pub(crate) site: Site,
    pub(crate) client: Client,
    operators: Option<Process>,
    begun: Instant,
}

impl Fleet {
    /// Starts a site with CRDs and all objects but machines, and operators with a short interval between observations.
    pub(crate) async fn start() -> Result<Self> {
        let site = Site::start().await?;
        let client = site.plane.client();
        let definitions = crds_json();
        apply(&client, &definitions).await?;
        let begun = Instant::now();
        // A CRD takes a moment until it is served.
        loop {
            match apply(&client, &site.objects(NAMESPACE)?).await {
                Ok(()) => break,
                Err(error) if begun.elapsed() > Duration::from_secs(30) => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
        let mut fleet = Self { site, client, operators: None, begun };
        fleet.start_operators()?;
        Ok(fleet)
    }

    pub(crate) fn start_operators(&mut self) -> Result<()> {
        let program = built()?.join("fleetwright");
        if !program.is_file() {
            bail!("{} is missing: run cargo build --bin fleetwright", program.display());
        }
        let kubeconfig = self.site.plane.kubeconfig_path();
        let (kubeconfig, helpers) = (kubeconfig.to_string_lossy(), helpers()?);
        let arguments = [
            "--log",
            "info,fleetwright_machines=debug",
            "operators",
            "--kubeconfig",
            &kubeconfig,
            "--namespace",
            NAMESPACE,
            "--listen",
            "127.0.0.1:0",
            "--lease-duration",
            // A small machine that also boots hosts may be slow to answer.
            "30s",
            "--check-every",
            "10s",
            "--helpers",
            &helpers.to_string_lossy(),
        ];
        self.operators = Some(Process::start("operators", &program, arguments, &self.site.plane.logs())?);
        Ok(())
    }

    /// Prints the present chapter, with the time since the start.
    pub(crate) fn chapter(&self, what: &str) {
        eprintln!("[{:>4} s] {what}", self.begun.elapsed().as_secs());
    }

    pub(crate) async fn add(&self, host: &HostDescription, packages: &[(String, String)]) -> Result<()> {
        apply(&self.client, &[host.machine(NAMESPACE, packages)]).await
    }

    pub(crate) fn machines(&self) -> Api<Machine> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    /// Changes the version of a component, as a person would: by editing the reference.
    pub(crate) async fn set(&self, machine: &str, component: &str, reference: &str) -> Result<()> {
        let mut packages = self.machines().get(machine).await?.spec.packages;
        match packages.iter_mut().find(|package| package.component == component) {
            Some(package) => package.ref_ = reference.to_owned(),
            None => packages.push(serde_json::from_value(json!({ "component": component, "ref": reference }))?),
        }
        let patch = json!({ "spec": { "packages": packages } });
        self.machines().patch(machine, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Waits until a machine has the wanted state; the error has its present status, and the path of all logs.
    pub(crate) async fn until(
        &mut self,
        machine: &str,
        what: &str,
        holds: impl Fn(&Machine) -> bool,
    ) -> Result<Machine> {
        let begun = Instant::now();
        loop {
            let now = self.machines().get(machine).await.with_context(|| format!("waiting for {what}"))?;
            if holds(&now) {
                return Ok(now);
            }
            self.operators_run()?;
            if begun.elapsed() > LONG {
                let status = serde_json::to_string_pretty(&now.status)?;
                bail!("waited {LONG:?} for {machine} {what}; it says {status}");
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    /// Waits for any other condition.
    pub(crate) async fn eventually<T, F>(&mut self, what: &str, mut look: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<Option<T>>>,
    {
        let begun = Instant::now();
        loop {
            if let Some(found) = look().await? {
                return Ok(found);
            }
            self.operators_run()?;
            if begun.elapsed() > LONG {
                bail!("waited {LONG:?} for {what}");
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    /// Creates a pod that serves its name, on that node or wherever the scheduler places it.
    pub(crate) async fn serve(&self, name: &str, node: Option<&str>) -> Result<()> {
        let chosen = node.map(|node| json!({ "kubernetes.io/hostname": node }));
        let pod = json!({
            "metadata": { "name": name },
            "spec": {
                "nodeSelector": chosen.unwrap_or(Value::Null),
                "containers": [{
                    "name": "web",
                    "image": fleetwright_lab::hosts::images::WEB,
                    "imagePullPolicy": "Never",
                }],
                "terminationGracePeriodSeconds": 1,
            },
        });
        self.pods().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        Ok(())
    }

    /// The address of a running pod.
    pub(crate) async fn address(&mut self, pod: &str) -> Result<String> {
        let pods = self.pods();
        self.eventually(&format!("pod {pod} to run"), || async {
            let status = pods.get(pod).await?.status.context("a pod has a status")?;
            Ok(status.pod_ip.filter(|_| status.phase.as_deref() == Some("Running")))
        })
        .await
    }

    /// Keeps all logs and prints their path.
    pub(crate) fn keep_logs(&mut self) {
        if let Some(operators) = &self.operators {
            eprintln!("the operators' last words:\n{}", operators.tail());
        }
        self.site.keep_logs();
    }

    fn operators_run(&mut self) -> Result<()> {
        let operators = self.operators.as_mut().context("no operators")?;
        match operators.ended()? {
            Some(status) => bail!("the operators ended with {status}; their last words:\n{}", operators.tail()),
            None => Ok(()),
        }
    }
}

/// The component in a machine's status.
pub(crate) fn component<'a>(machine: &'a Machine, name: &str) -> Option<&'a Component> {
    machine.status.as_ref()?.components.iter().find(|component| component.component == name)
}

/// Whether a component is ready in that version.
pub(crate) fn ready_in(machine: &Machine, name: &str, version: &str) -> bool {
    component(machine, name).is_some_and(|component| {
        component.state == ComponentState::Ready && component.observed.as_deref() == Some(version)
    })
}

/// Whether a condition of a machine is true.
pub(crate) fn is_true(machine: &Machine, condition: &str) -> bool {
    let conditions = machine.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|found| found.type_ == condition && found.status == Status::True)
}
