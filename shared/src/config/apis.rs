//! APIs of the file: their descriptions are read, and their operations become tools of the file.

use std::path::Path;

use super::read::claimed_twice;
use super::{Config, FileApi};
use crate::limits;
use crate::model::PlatformTool;
use crate::openapi;

impl Config {
    /// Reads the descriptions that the tenants name, relative to `folder`.
    pub fn import_apis(&mut self, folder: &Path) -> Result<(), Vec<String>> {
        let mut problems = Vec::new();
        for (tenant, of_tenant) in &mut self.tenants {
            for api in &mut of_tenant.apis {
                match import(api, folder) {
                    Ok(tools) => of_tenant.tools.extend(tools),
                    Err(what) => problems.push(format!("tenants.{tenant}.apis: {}: {what}", api.file.display())),
                }
            }
            let claimed = || claimed_twice(&of_tenant.servers, &of_tenant.tools);
            of_tenant.broken = of_tenant.broken.take().or_else(claimed);
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

fn import(of_file: &mut FileApi, folder: &Path) -> Result<Vec<PlatformTool>, String> {
    let path = folder.join(&of_file.file);
    let size = std::fs::metadata(&path).map_err(|e| e.to_string())?.len();
    if size > limits::CONFIG_BYTES as u64 {
        return Err(format!("larger than {} bytes", limits::CONFIG_BYTES));
    }
    let text = std::fs::read_to_string(&path).map_err(|e| e.to_string())?;
    let import = openapi::import(&openapi::parse(&text)?, &of_file.api)?;
    let skipped = import.skipped.iter().map(|skipped| format!("{} is left out: {}", skipped.operation, skipped.reason));
    of_file.remarks = skipped.chain(import.warnings).collect();
    match import.tools.is_empty() {
        true => Err(format!("no operation becomes a tool: {}", of_file.remarks.join("; "))),
        false => Ok(import.tools),
    }
}
