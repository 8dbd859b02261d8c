//! Schemas of texts in package versions.
//!
//! API servers estimate the cost of a rule from the longest text and the longest list that the schema allows, and reject a kind whose rules could cost too
//! much. Therefore all lengths are limited.
//! The keys of a map cannot be limited, and rules about them can only use functions whose cost does not depend on the length.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::json;

use crate::templates;
use crate::text::{ruled, set_of};

/// Maximum length of a template in characters. Longer texts are data rather than templates: put them into `content`, a ConfigMap or an archive.
const MAX_TEMPLATE: u32 = 16384;

/// Limits the total length of all texts of a package version to what the datastore can store.
pub(crate) const ALL_TEXTS: &str = "(has(self.files) ? self.files.map(file, (has(file.content) ? size(file.content) : 0) + (has(file.template) ? size(file.template) : 0)).sum() : 0) \
+ (has(self.units) ? self.units.map(unit, (has(unit.content) ? size(unit.content) : 0) + (has(unit.dropIns) ? unit.dropIns.map(name, size(unit.dropIns[name])).sum() : 0)).sum() : 0) \
+ (has(self.script) ? size(self.script.check) + size(self.script.apply) + size(self.script.remove) : 0) <= 262144";

/// Version of a component. It becomes part of a path on hosts.
pub(crate) fn version(_: &mut SchemaGenerator) -> Schema {
    ruled(
        128,
        "self.matches('^[A-Za-z0-9][A-Za-z0-9.+~:_-]*$')",
        "must be a version: letters, digits and . + ~ : _ -, beginning with a letter or digit, such as 1.37.1",
    )
}

/// A SHA-256 digest.
pub(crate) fn sha256(_: &mut SchemaGenerator) -> Schema {
    ruled(64, "self.matches('^[0-9a-f]{64}$')", "must be 64 digits of lower-case hex, as sha256sum prints them")
}

/// URL of a download or check.
pub(crate) fn url(_: &mut SchemaGenerator) -> Schema {
    ruled(
        1024,
        "isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != ''",
        "must be a URL with http or https and a host, such as https://packages.example.com/kubelet.tar.zst",
    )
}

/// URLs of mirrors.
pub(crate) fn urls(generator: &mut SchemaGenerator) -> Schema {
    set_of(url(generator), 8)
}

/// Key of a ConfigMap or Secret.
pub(crate) fn data_key(_: &mut SchemaGenerator) -> Schema {
    ruled(
        253,
        "self.matches('^[A-Za-z0-9._-]+$')",
        "must be the key of a ConfigMap or Secret: letters, digits, -, _ and .",
    )
}

const ABSOLUTE: &str = r"self.matches('^(/[^/\\x00-\\x1f\\x7f]+)+$') && !self.matches('/[.][.]?(/|$)') && !self.matches('^/(proc|sys|dev|(var/lib|opt)/fleetwright)(/|$)')";
const ABSOLUTE_SAID: &str = "must be an absolute path without .., // and / at its end, and not in /proc, /sys, /dev, /var/lib/fleetwright or /opt/fleetwright, such as /etc/kubernetes/kubelet.yaml";

/// Path of a file on a host. Paths of the kernel and of Fleetwright itself are not allowed.
pub(crate) fn path(_: &mut SchemaGenerator) -> Schema {
    ruled(512, ABSOLUTE, ABSOLUTE_SAID)
}

/// Files and folders that are removed with a component. A typing mistake must not delete the host's own files.
pub(crate) fn removed_paths(_: &mut SchemaGenerator) -> Schema {
    let path = json_schema!({
        "type": "string",
        "maxLength": 512,
        "x-kubernetes-validations": [
            {"rule": ABSOLUTE, "message": ABSOLUTE_SAID},
            {
                "rule": "self.matches('^/[^/]+/.') && !self.matches('^/(usr/[^/]+|var/[^/]+|home/[^/]+|etc/(systemd|ssh|apt|pam.d|default|network))$')",
                "message": "would take more than a component away: name files and folders of the component alone, such as /var/lib/kubelet",
            },
        ],
    });
    set_of(path, 32)
}

/// Permission bits.
pub(crate) fn mode(_: &mut SchemaGenerator) -> Schema {
    ruled(
        4,
        "self.matches('^[0-7]{3,4}$')",
        "must be permission bits in octal, in quotes: three or four digits from 0 to 7, such as \"0644\"",
    )
}

/// Name of a systemd unit.
pub(crate) fn unit(_: &mut SchemaGenerator) -> Schema {
    ruled(
        255,
        r"self.matches('^[A-Za-z0-9:_.@\\\\-]+[.](service|socket|timer|path|mount|automount|swap|target|slice)$') && !self.startsWith('-') && !self.startsWith('.')",
        "must be the name of a systemd unit with its type, such as kubelet.service, containerd.socket or logrotate.timer",
    )
}

/// Files whose change restarts a unit. Another rule of the package checks that they are files of the package.
pub(crate) fn restart_on(_: &mut SchemaGenerator) -> Schema {
    set_of(json_schema!({"type": "string", "maxLength": 512}), 16)
}

/// Host and port of a listener.
pub(crate) fn tcp(_: &mut SchemaGenerator) -> Schema {
    ruled(
        261,
        r"self.matches('^([[][0-9A-Fa-f:.]+[]]|[A-Za-z0-9.-]+):[1-9][0-9]{0,4}$') && int(self.split(':')[self.split(':').size() - 1]) <= 65535",
        "must be a host and a port from 1 to 65535, such as 127.0.0.1:10250 or [::1]:10250",
    )
}

/// A command line or short script.
pub(crate) fn command(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": 8192})
}

/// Output of `uname -r`.
pub(crate) fn release(_: &mut SchemaGenerator) -> Schema {
    ruled(
        64,
        "self.matches('^[A-Za-z0-9][A-Za-z0-9.+~_-]*$')",
        "must be a kernel's release as uname -r says it, such as 6.1.0-54-amd64",
    )
}

/// Kernel parameters. They are written into configuration files of boot loaders, in which quotes and dollar signs have a special meaning.
pub(crate) fn parameters(_: &mut SchemaGenerator) -> Schema {
    let parameter = ruled(
        256,
        r"self.matches('^[A-Za-z0-9_.-]+(=[A-Za-z0-9_.,:;/@%+=*!^-]*)?$')",
        "must be one parameter of a kernel's command line, without spaces and quotes, such as quiet or hugepages=512",
    );
    set_of(parameter, 64)
}

/// A map from names to single lines.
fn lines(most: u32, longest: u32, rule: &str, message: &str) -> Schema {
    let line = ruled(
        longest,
        r"self.matches('^[^\\x00-\\x08\\x0a-\\x1f\\x7f]*$')",
        "must be one line without control characters",
    );
    json_schema!({
        "type": "object",
        "maxProperties": most,
        "additionalProperties": line,
        "x-kubernetes-validations": [{"rule": rule, "message": message}],
    })
}

/// Kernel parameters (sysctl).
pub(crate) fn sysctls(_: &mut SchemaGenerator) -> Schema {
    let mut settings = lines(
        128,
        512,
        "self.all(name, name != '' && !format.labelValue().validate(name).hasValue())",
        "every name must be that of a kernel setting as sysctl prints it, such as vm.swappiness",
    );
    settings.insert("minProperties".to_owned(), 1.into());
    settings
}

/// Kernel modules and their options.
pub(crate) fn modules(_: &mut SchemaGenerator) -> Schema {
    lines(
        64,
        256,
        "self.all(name, name != '' && !format.labelValue().validate(name).hasValue())",
        "every name must be that of a kernel's module as lsmod prints it, such as br_netfilter",
    )
}

/// Packages of an operating system and their versions. No name may look like an option of the package tools.
pub(crate) fn os_packages(_: &mut SchemaGenerator) -> Schema {
    let version = ruled(
        128,
        "self.matches('^[A-Za-z0-9][A-Za-z0-9.+~:^_-]*$')",
        "must be the exact version of a package, such as 2.4.2-1~deb12u1 or 2.4.2-1.el9",
    );
    json_schema!({
        "type": "object",
        "minProperties": 1,
        "maxProperties": 32,
        "additionalProperties": version,
        "x-kubernetes-validations": [{
            "rule": "self.all(name, name != '' && !name.startsWith('-') && !name.startsWith('/') && !name.startsWith('.'))",
            "message": "every name must be that of a package, such as containerd.io",
        }],
    })
}

/// Links on a host to paths in an archive.
pub(crate) fn links(_: &mut SchemaGenerator) -> Schema {
    let target = ruled(
        512,
        r"self.matches('^[^/\\x00-\\x1f\\x7f]+(/[^/\\x00-\\x1f\\x7f]+)*$') && !self.matches('(^|/)[.][.]?(/|$)')",
        "must be a path in the archive, relative and without .., such as bin/kubelet",
    );
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": target,
        "x-kubernetes-validations": [{
            "rule": "self.all(path, path.startsWith('/') && !path.startsWith('//') && !path.endsWith('/') && !path.endsWith('/..') && !path.startsWith('/proc/') && !path.startsWith('/sys/') && !path.startsWith('/dev/') && !path.startsWith('/var/lib/fleetwright/') && !path.startsWith('/opt/fleetwright/'))",
            "message": "every link must be an absolute path on the host, not in /proc, /sys, /dev, /var/lib/fleetwright or /opt/fleetwright, such as /usr/local/bin/kubelet",
        }],
    })
}

/// Drop-ins of a unit.
pub(crate) fn drop_ins(generator: &mut SchemaGenerator) -> Schema {
    let mut content = template(generator);
    content.insert("maxLength".to_owned(), 4096.into());
    json_schema!({
        "type": "object",
        "maxProperties": 8,
        "additionalProperties": content,
        "x-kubernetes-validations": [{
            "rule": "self.all(name, name.endsWith('.conf') && !format.labelValue().validate(name).hasValue())",
            "message": "every name must be that of a drop-in: letters, digits, -, _ and ., ending in .conf, such as 10-limits.conf",
        }],
    })
}

/// A script: a template that is not empty.
pub(crate) fn script(generator: &mut SchemaGenerator) -> Schema {
    let mut script = template(generator);
    script.insert("minLength".to_owned(), 1.into());
    script
}

/// A template. Unknown names at the start of an expression are rejected here; the renderer finds the others before any host is changed.
///
/// The rule compares two counts: expressions that start with a known name, and expressions that start with any name.
/// Comparing the two lists of matches one by one would exceed the cost estimate of the API server.
/// Loops, macros and assignments introduce their own names, and raw blocks and comments are not expressions.
pub(crate) fn template(_: &mut SchemaGenerator) -> Schema {
    let begins = r"[{]{2}[-+]?\\s*";
    let own = "self.contains('endfor') || self.contains('endmacro') || self.contains('endwith') || self.contains('endraw') || self.contains('#}')";
    let as_many = |any: &str, known: String| {
        format!("{own} || size(self.findAll('{begins}{any}')) == size(self.findAll('{begins}{known}'))")
    };
    let known = |root: &str, names: &[&str]| format!(r"{root}(\\[|[.]({})\\b)", names.join("|"));
    let listed = |names: &[&str]| names.join(", ");
    json_schema!({
        "type": "string",
        "maxLength": MAX_TEMPLATE,
        "x-kubernetes-validations": json!([
            {
                "rule": format!(r"self.contains('{{% set') || self.contains('{{%- set') || {}", as_many("[A-Za-z_]", format!(r"({})\\b", templates::ROOTS.join("|")))),
                "message": format!("templates know the names {} and no others: an expression begins with one of them, such as {{{{ machine.name }}}}", listed(&templates::ROOTS)),
            },
            {
                "rule": as_many(r"machine\\b", known("machine", &templates::MACHINE)),
                "message": format!("of a machine templates know {}: such as {{{{ machine.nodeName }}}} or {{{{ machine.labels.zone }}}}", listed(&templates::MACHINE)),
            },
            {
                "rule": as_many(r"facts\\b", known("facts", &templates::FACTS)),
                "message": format!("of a host's facts templates know {}: such as {{{{ facts.arch }}}}", listed(&templates::FACTS)),
            },
        ]),
    })
}
