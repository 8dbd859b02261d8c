use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{Ctx, eventually};

/// A custom resource of a case's own: kind `Widget`, in a group that no other case has.
#[derive(Clone, Debug)]
pub struct Crd {
    pub group: String,
    /// The definition, as it is sent.
    pub body: Value,
}

impl Crd {
    /// A namespaced `Widget`, version `v1`, whose `spec` and `status` have these schemas, with a status subresource.
    pub fn new(ctx: &Ctx, spec: Value, status: Value) -> Self {
        let group = format!("{}.fleetwright.io", ctx.unique("group"));
        let schema = json!({"type": "object", "properties": {"spec": spec, "status": status}});
        let body = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("widgets.{group}")},
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}},
                }],
            },
        });
        Self { group, body }
    }

    /// A `Widget` whose `spec` and `status` may hold anything.
    pub fn open(ctx: &Ctx) -> Self {
        let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        Self::new(ctx, any.clone(), any)
    }

    /// The first version, to add to.
    pub fn version(&mut self) -> &mut Value {
        &mut self.body["spec"]["versions"][0]
    }

    /// Where the definition is.
    pub fn definition(&self) -> String {
        format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.{}", self.group)
    }

    /// Where the case's widgets are, or one of them: `path(&ctx, "/one/status")`.
    pub fn path(&self, ctx: &Ctx, rest: &str) -> String {
        format!("/apis/{}/v1/namespaces/{}/widgets{rest}", self.group, ctx.ns)
    }

    /// Creates the definition and waits until it is served.
    pub async fn make(self, ctx: &Ctx) -> Result<Self> {
        ctx.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &self.body).await?.code(201)?;
        self.served(ctx).await?;
        Ok(self)
    }

    /// Waits until it is served.
    pub async fn served(&self, ctx: &Ctx) -> Result<()> {
        eventually("the definition is established", async || {
            let now = ctx.get(self.definition()).await?.ok()?;
            let conditions = now["status"]["conditions"].as_array().cloned().unwrap_or_default();
            ensure!(conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True"), "{now}");
            ctx.get(self.path(ctx, "")).await?.ok()
        })
        .await?;
        Ok(())
    }

    /// A widget with this spec.
    pub fn widget(&self, name: &str, spec: Value) -> Value {
        json!({
            "apiVersion": format!("{}/v1", self.group), "kind": "Widget", "metadata": {"name": name}, "spec": spec,
        })
    }
}
