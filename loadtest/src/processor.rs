//! Processor time of processes, and which cores they run on.

use std::io::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

fn tasks(process: u32) -> Result<Vec<PathBuf>, String> {
    let folder = Path::new("/proc").join(process.to_string()).join("task");
    let of = |e: Error| format!("{}: {e}", folder.display());
    std::fs::read_dir(&folder).map_err(of)?.map(|entry| entry.map(|e| e.path()).map_err(of)).collect()
}

/// Time that a process's threads have run so far, in user and kernel, to the nanosecond (`schedstat` of `proc(5)`). Threads
/// that have ended are not in it, so it is for processes whose threads stay.
pub fn time(process: u32) -> Result<Duration, String> {
    let mut sum = 0;
    for task in tasks(process)? {
        // A thread may have ended since the folder was read.
        let Ok(text) = std::fs::read_to_string(task.join("schedstat")) else { continue };
        sum += text.split_whitespace().next().and_then(|ran| ran.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(sum))
}

/// Of several processes together.
pub fn time_of_all(processes: &[u32]) -> Result<Duration, String> {
    processes.iter().try_fold(Duration::ZERO, |sum, process| Ok(sum + time(*process)?))
}

/// The cores that this process may run on.
pub fn cores() -> Result<Vec<usize>, String> {
    let set = sched_getaffinity(None).map_err(|e| format!("the cores of this process: {e}"))?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

/// Lets a process run on these cores alone, with all its threads; those that it starts from now on inherit it.
pub fn pin(process: u32, cores: &[usize]) -> Result<(), String> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    for task in tasks(process)? {
        let id = task.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
        if let Some(id) = id.and_then(Pid::from_raw) {
            match sched_setaffinity(Some(id), &set) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(format!("process {process} cannot be pinned: {error}")),
            }
        }
    }
    Ok(())
}

/// Memory that a process holds (`VmRSS` of `proc(5)`), in bytes.
pub fn memory(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(Path::new("/proc").join(process.to_string()).join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kb| kb * 1024)
}
