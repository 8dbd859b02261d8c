//! Hosts that become workers of business clusters.

use anyhow::{Context as _, Result};

use super::store::{Store, TAKE};
use super::{Meta, node};
use crate::hosts::command::aside;
use crate::hosts::{Host, Image, Site};

/// The hosts reach no registry: containerd imports these images at its start, no matter how it was installed.
const IMAGES_UNIT: &str = "[Service]\nExecStartPre=/bin/sh -eu /etc/lab-images /opt/images\n";

/// The images for new workers. Must live as long as the workers.
#[derive(Debug)]
pub struct Workers {
    store: Store,
    images: Vec<String>,
}

impl Workers {
    /// The image of a component, such as `kube-proxy`.
    ///
    /// # Errors
    /// When there is no such image.
    pub fn image(&self, component: &str) -> Result<&str> {
        let found = self.images.iter().find(|image| image.contains(&format!("/{component}:")));
        found
            .map(String::as_str)
            .with_context(|| format!("no image of {component} for workers; available: {:?}", self.images))
    }
}

impl Meta {
    /// Prepares the images of a minor's workers: small images, CoreDNS, kube-proxy, and these.
    ///
    /// # Errors
    /// When an image cannot be built.
    pub async fn workers(&self, minor: &str, more: Vec<Image>) -> Result<Workers> {
        let mut images = aside(Image::small).await?;
        images.push(Image::coredns().await?);
        images.push(Image::kube_proxy(minor)?);
        images.extend(more);
        let names = images.iter().map(|image| image.name().to_owned()).collect();
        let template = self.site.template.with(&self.site.repository).await?;
        Ok(Workers { store: Store::with(&template, images).await?, images: names })
    }

    /// Boots a bare host with images that containerd imports as soon as it is installed.
    ///
    /// # Errors
    /// When it does not boot.
    pub async fn worker(&self, name: &str, workers: &Workers) -> Result<Host> {
        let bare = self.site.bare(name).bind(workers.store.folder(), node::IMAGES);
        let bare = bare.file("/etc/lab-images", 0o644, TAKE);
        bare.file("/etc/systemd/system/containerd.service.d/05-images.conf", 0o644, IMAGES_UNIT).start().await
    }

    /// Adds routes between the pods of all these hosts, in the order of [`Site::pods`], and from the pods of the meta cluster to them, which API
    /// servers need.
    ///
    /// # Errors
    /// When a host has ended.
    pub async fn connect(&self, workers: &[&Host]) -> Result<()> {
        self.site.connect(workers).await?;
        for (number, worker) in workers.iter().enumerate() {
            let number = u8::try_from(number).context("too many hosts")?;
            self.node.route(&Site::pods(number), worker.address()).await?;
        }
        Ok(())
    }
}
