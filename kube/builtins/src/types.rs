//! The one place that names `k8s-openapi`'s types: their definitions, by OpenAPI name.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    apps, authentication, authorization, autoscaling, batch, certificates, coordination, core, discovery, events,
    networking, policy, rbac, scheduling, storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use schemars::generate::SchemaSettings;
use serde_json::Value;

macro_rules! definitions {
    ($($type:ty),* $(,)?) => {{
        let mut generator = SchemaSettings::openapi3().into_generator();
        $(generator.subschema_for::<$type>();)*
        generator.take_definitions(true).into_iter().collect()
    }};
}

/// The definitions of every type of the table, and of all they hold.
pub(crate) fn definitions() -> BTreeMap<String, Value> {
    definitions!(
        core::v1::Binding,
        core::v1::ConfigMap,
        core::v1::Endpoints,
        core::v1::Event,
        core::v1::Namespace,
        core::v1::Node,
        core::v1::PersistentVolume,
        core::v1::PersistentVolumeClaim,
        core::v1::Pod,
        core::v1::ResourceQuota,
        core::v1::Secret,
        core::v1::Service,
        core::v1::ServiceAccount,
        apps::v1::ControllerRevision,
        apps::v1::DaemonSet,
        apps::v1::Deployment,
        apps::v1::ReplicaSet,
        apps::v1::StatefulSet,
        authentication::v1::SelfSubjectReview,
        authentication::v1::TokenRequest,
        authentication::v1::TokenReview,
        authorization::v1::LocalSubjectAccessReview,
        authorization::v1::SelfSubjectAccessReview,
        authorization::v1::SelfSubjectRulesReview,
        authorization::v1::SubjectAccessReview,
        autoscaling::v1::Scale,
        batch::v1::CronJob,
        batch::v1::Job,
        certificates::v1::CertificateSigningRequest,
        coordination::v1::Lease,
        discovery::v1::EndpointSlice,
        events::v1::Event,
        networking::v1::Ingress,
        networking::v1::IngressClass,
        networking::v1::NetworkPolicy,
        policy::v1::Eviction,
        policy::v1::PodDisruptionBudget,
        rbac::v1::ClusterRole,
        rbac::v1::ClusterRoleBinding,
        rbac::v1::Role,
        rbac::v1::RoleBinding,
        scheduling::v1::PriorityClass,
        storage::v1::CSIDriver,
        storage::v1::CSINode,
        storage::v1::StorageClass,
        storage::v1::VolumeAttachment,
        CustomResourceDefinition,
        meta::APIGroup,
        meta::APIGroupList,
        meta::APIResourceList,
        meta::DeleteOptions,
        meta::ListMeta,
        meta::ObjectMeta,
        meta::Status,
        meta::WatchEvent<RawExtension>,
    )
}
