//! Resource usage of the process, read on each scrape.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Unit of times in `/proc/PID/stat`: `USER_HZ`, which is 100 on every supported architecture.
const TICKS: f64 = 100.0;

/// CPU time, memory and open files, with the metric names of Prometheus' client libraries. Nothing on systems without `/proc`.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(seconds) = std::fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(cpu_seconds) {
            let counter = ConstCounter::new(seconds);
            let help = "Processor time, of user and system";
            counter.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, counter.metric_type())?)?;
        }
        if let Some(bytes) = std::fs::read_to_string("/proc/self/status").ok().as_deref().and_then(resident_bytes) {
            let gauge = ConstGauge::new(bytes);
            let help = "Resident memory";
            gauge.encode(encoder.encode_descriptor(
                "process_resident_memory_bytes",
                help,
                None,
                gauge.metric_type(),
            )?)?;
        }
        if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
            let gauge = ConstGauge::new(i64::try_from(files.count()).unwrap_or(i64::MAX));
            let help = "Open file descriptors";
            gauge.encode(encoder.encode_descriptor("process_open_fds", help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

/// The 14th and 15th field; the second is the program's name in parentheses and may contain any character.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some((f64::from(user) + f64::from(system)) / TICKS)
}

fn resident_bytes(status: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_spaces_and_parentheses_is_no_trouble() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 1 0 5 0 0";
        assert_eq!(cpu_seconds(stat), Some(2.0));
    }

    #[test]
    fn this_process_has_memory() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        assert!(resident_bytes(&status).unwrap() > 100 * 1024);
    }
}
