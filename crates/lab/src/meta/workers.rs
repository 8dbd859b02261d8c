//! Hosts that are to be workers of business clusters.

use anyhow::{Context as _, Result};

use super::store::{Store, TAKE};
use super::{Meta, node};
use crate::hosts::command::aside;
use crate::hosts::{Host, Image, Site};

/// No registry is reachable from there: containerd begins with these images, whoever installs it.
const IMAGES_UNIT: &str = "[Service]\nExecStartPre=/bin/sh -eu /etc/lab-images /opt/images\n";

/// What workers find when they begin. Must live as long as they do.
#[derive(Debug)]
pub struct Workers {
    store: Store,
    images: Vec<String>,
}

impl Workers {
    /// The image of a component, such as `kube-proxy`.
    ///
    /// # Errors
    /// When there is none.
    pub fn image(&self, component: &str) -> Result<&str> {
        let found = self.images.iter().find(|image| image.contains(&format!("/{component}:")));
        found
            .map(String::as_str)
            .with_context(|| format!("no image of {component} for workers; available: {:?}", self.images))
    }
}

impl Meta {
    /// Makes what workers of a minor begin with: small images, CoreDNS, kube-proxy, and these.
    ///
    /// # Errors
    /// When one of them cannot be made.
    pub async fn workers(&self, minor: &str, more: Vec<Image>) -> Result<Workers> {
        let mut images = aside(Image::small).await?;
        images.push(Image::coredns().await?);
        images.push(Image::kube_proxy(minor)?);
        images.extend(more);
        let names = images.iter().map(|image| image.name().to_owned()).collect();
        let template = self.site.template.with(&self.site.repository).await?;
        Ok(Workers { store: Store::with(&template, images).await?, images: names })
    }

    /// Boots a host that is bare but for images, which it has as soon as it has a containerd.
    ///
    /// # Errors
    /// When it does not boot.
    pub async fn worker(&self, name: &str, workers: &Workers) -> Result<Host> {
        let bare = self.site.bare(name).bind(workers.store.folder(), node::IMAGES);
        let bare = bare.file("/etc/lab-images", 0o644, TAKE);
        bare.file("/etc/systemd/system/containerd.service.d/05-images.conf", 0o644, IMAGES_UNIT).start().await
    }

    /// Lets the pods of all these hosts reach each other, in the order of [`Site::pods`], and the pods of the meta cluster reach them: so API
    /// servers do.
    ///
    /// # Errors
    /// When a host is gone.
    pub async fn connect(&self, workers: &[&Host]) -> Result<()> {
        self.site.connect(workers).await?;
        for (number, worker) in workers.iter().enumerate() {
            let number = u8::try_from(number).context("too many hosts")?;
            self.node.route(&Site::pods(number), worker.address()).await?;
        }
        Ok(())
    }
}
