//! Schemas of texts that several kinds contain.
//! Each rejects invalid values by a validation rule with a readable message; a plain pattern would only return a regular expression.
//! The length is limited, which limits the estimated cost of the rule.

use kube::core::Rule;
use schemars::{Schema, SchemaGenerator, json_schema};

const NAME: &str =
    "must be the name of an object: lower-case letters, digits, - and ., beginning and ending with a letter or digit";
const SHORT_NAME: &str =
    "must be lower-case letters, digits and -, beginning and ending with a letter or digit, such as log-agent";
const LABEL_KEY: &str = "must be a label's key: letters, digits, -, _ and . (63 at most), with a DNS name and / before it if need be, such as zone or example.com/zone";
const LABEL_VALUE: &str =
    "must be a label's value: letters, digits, -, _ and ., beginning and ending with a letter or digit, or empty";
const CAMEL_CASE: &str =
    "must be one word in CamelCase: letters and digits, beginning with a capital letter, such as LogAgentReady";
pub(crate) const DURATION: &str =
    "must be a duration such as 90s or 1h30m, with the units h, m, s and ms in this order, of 720h at most";
pub(crate) const AMOUNT: &str =
    "must be a number of at most 1000000, such as 5, or a percentage from 0% to 100%, such as \"5%\"";
pub(crate) const QUANTITY: &str = "must be a quantity above nothing, such as 500m, 2 or 8Gi";

/// Terms of the reference page for common values, and the messages of their rules.
pub(crate) const WORDS: [(&str, &str); 8] = [
    ("name", NAME),
    ("short name", SHORT_NAME),
    ("label key", LABEL_KEY),
    ("label value", LABEL_VALUE),
    ("CamelCase", CAMEL_CASE),
    ("duration", DURATION),
    ("amount", AMOUNT),
    ("quantity", QUANTITY),
];

/// A text of at most `max` characters with a validation rule.
pub(crate) fn ruled(max: u32, rule: &str, message: &str) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": max,
        "x-kubernetes-validations": [{"rule": rule, "message": message}],
    })
}

/// A list of such texts without duplicates.
pub(crate) fn set_of(item: Schema, max: u32) -> Schema {
    json_schema!({"type": "array", "items": item, "maxItems": max, "x-kubernetes-list-type": "set"})
}

/// Name of an object: a DNS subdomain.
pub(crate) fn object_name(_: &mut SchemaGenerator) -> Schema {
    ruled(253, "!format.dns1123Subdomain().validate(self).hasValue()", NAME)
}

/// A DNS label.
pub(crate) fn dns_label(_: &mut SchemaGenerator) -> Schema {
    ruled(63, "!format.dns1123Label().validate(self).hasValue()", SHORT_NAME)
}

/// A list of DNS labels.
pub(crate) fn dns_labels(generator: &mut SchemaGenerator) -> Schema {
    set_of(dns_label(generator), 32)
}

/// A duration longer than zero.
pub(crate) fn positive() -> Rule {
    Rule::new("duration(self) > duration('0s')").message("must be longer than nothing, such as 10m")
}

/// Name of a host. Kubelets put it into a label of their Node, so it has the maximum length of a label value.
pub(crate) fn host_name(_: &mut SchemaGenerator) -> Schema {
    ruled(
        63,
        "!format.dns1123Subdomain().validate(self).hasValue()",
        "must be a host name: lower-case letters, digits, - and ., beginning and ending with a letter or digit, such as host-17.example.com",
    )
}

/// Addresses of a host.
pub(crate) fn addresses(generator: &mut SchemaGenerator) -> Schema {
    set_of(address(generator), 16)
}

/// Address of a host. A mistyped IP address must not pass as a DNS name.
pub(crate) fn address(_: &mut SchemaGenerator) -> Schema {
    ruled(
        253,
        "isIP(self) || (!self.matches('^[0-9.]*$') && !format.dns1123Subdomain().validate(self).hasValue())",
        "must be an IP address without port or zone, such as 198.18.0.17 or 2001:db8::17, or a DNS name",
    )
}

/// Key of a label or taint.
pub(crate) fn label_key(_: &mut SchemaGenerator) -> Schema {
    ruled(317, "!format.qualifiedName().validate(self).hasValue()", LABEL_KEY)
}

/// Value of a label or taint.
pub(crate) fn label_value(_: &mut SchemaGenerator) -> Schema {
    ruled(63, "!format.labelValue().validate(self).hasValue()", LABEL_VALUE)
}

/// Labels.
pub(crate) fn labels(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": label_value(generator),
        "x-kubernetes-validations": [{
            "rule": "self.all(key, !format.qualifiedName().validate(key).hasValue())",
            "message": format!("every key {LABEL_KEY}"),
        }],
    })
}

/// Rendered inputs by name, with a prefix of their digests.
pub(crate) fn inputs(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 128,
        "additionalProperties": { "type": "string", "maxLength": 256 },
    })
}

/// A word in CamelCase: the type of a condition or operation, or a kind.
pub(crate) fn camel_case(_: &mut SchemaGenerator) -> Schema {
    ruled(64, "self.matches('^[A-Z][A-Za-z0-9]*$')", CAMEL_CASE)
}

/// A list of at least one such word.
pub(crate) fn camel_cases(generator: &mut SchemaGenerator) -> Schema {
    let mut list = set_of(camel_case(generator), 32);
    list.insert("minItems".to_owned(), 1.into());
    list
}

/// Type of a condition of a Node. Types that are not from Kubernetes may have a DNS name as a prefix.
pub(crate) fn node_condition(_: &mut SchemaGenerator) -> Schema {
    ruled(
        317,
        "!format.qualifiedName().validate(self).hasValue()",
        "must be the type of a condition of a Node, such as Ready or example.com/DiskHealthy",
    )
}

/// Name of a user on a host.
pub(crate) fn user(_: &mut SchemaGenerator) -> Schema {
    ruled(
        32,
        "self.matches('^[a-z_][a-z0-9_-]*$')",
        "must be the name of a user on the host: lower-case letters, digits, - and _, beginning with a letter or _",
    )
}

/// Public keys of a host.
pub(crate) fn host_keys(_: &mut SchemaGenerator) -> Schema {
    let key = ruled(
        4096,
        "self.matches('^(ssh-(ed25519|rsa)|ecdsa-sha2-nistp(256|384|521)|sk-(ssh-ed25519|ecdsa-sha2-nistp256)@openssh[.]com) AAAA[A-Za-z0-9+/]+=*( [^\\\\x00-\\\\x1f]*)?$')",
        "must be a host's public key as ssh-keyscan prints it, without the host: ssh-ed25519 AAAA…, also ssh-rsa and ecdsa-sha2-nistp256, 384 or 521",
    );
    set_of(key, 8)
}

/// One line of human-readable text.
pub(crate) fn line(_: &mut SchemaGenerator) -> Schema {
    ruled(
        128,
        "self.matches('^[^\\\\x00-\\\\x1f\\\\x7f]*$')",
        "must be one line without tabs and other control characters",
    )
}

/// Provider ID of a host.
pub(crate) fn provider_id(_: &mut SchemaGenerator) -> Schema {
    ruled(
        253,
        "self.matches('^[a-z][a-z0-9+.-]*://[!-~]+$')",
        "must be a provider's name for a host: the provider, :// and the host's name there, without spaces, such as bare://rack-3/host-17",
    )
}

/// Name of the requesting operator.
pub(crate) fn requester(_: &mut SchemaGenerator) -> Schema {
    ruled(
        253,
        "self.matches('^[A-Za-z0-9]([A-Za-z0-9._:@/-]*[A-Za-z0-9])?$')",
        "must name the operator that asks: letters, digits and . _ : @ / -, such as machine-operator",
    )
}

/// Hash of everything that an action depends on.
pub(crate) fn fingerprint(_: &mut SchemaGenerator) -> Schema {
    ruled(
        128,
        "self.matches('^[A-Za-z0-9._:+=/-]+$')",
        "must be letters, digits and . _ : + = / - without spaces, such as the hash of what the act depends on",
    )
}

/// A label selector. Its schema in Kubernetes validates almost nothing; an invalid selector would select nothing or everything.
pub(crate) fn selector(generator: &mut SchemaGenerator) -> Schema {
    let values = json_schema!({
        "type": "array", "maxItems": 64, "items": label_value(generator), "x-kubernetes-list-type": "atomic",
        "description": "The values meant by In and NotIn.",
    });
    let mut key = label_key(generator);
    key.insert("description".to_owned(), "The label's key.".into());
    let expression = json_schema!({
        "type": "object",
        "required": ["key", "operator"],
        "properties": {
            "key": key,
            "operator": {
                "type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                "description": "How the label is compared: In, NotIn, Exists or DoesNotExist.",
            },
            "values": values,
        },
        "x-kubernetes-validations": [
            {
                "rule": "!(self.operator in ['In', 'NotIn']) || (has(self.values) && self.values.size() > 0)",
                "message": "In and NotIn compare with values: list at least one",
                "fieldPath": ".values", "reason": "FieldValueRequired",
            },
            {
                "rule": "!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || self.values.size() == 0",
                "message": "Exists and DoesNotExist look at the key only: leave values out",
                "fieldPath": ".values", "reason": "FieldValueForbidden",
            },
        ],
    });
    let mut match_labels = labels(generator);
    match_labels.insert("description".to_owned(), "Labels that must be there with these values.".into());
    json_schema!({
        "type": "object",
        "properties": {
            "matchLabels": match_labels,
            "matchExpressions": {
                "type": "array", "maxItems": 32, "items": expression, "x-kubernetes-list-type": "atomic",
                "description": "What else must hold of the labels; all of it.",
            },
        },
        "x-kubernetes-map-type": "atomic",
    })
}
