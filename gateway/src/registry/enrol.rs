//! Enrolment: aliases are allotted when servers are registered, and stored with them.

use rollcall_shared::ids::TenantId;
use rollcall_shared::model::Server;
use rollcall_shared::model::tenant::Allotment;
use rollcall_shared::store::{self, Documents, Expect, Key, Kind, StoreError, Write};

use super::naming::{AliasTaken, Newcomer, allot};

/// Why servers could not be enrolled.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    #[error(transparent)]
    Alias(#[from] AliasTaken),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the stored aliases cannot be read: {0}")]
    Unreadable(#[from] store::DecodeError),
}

/// Aliases after the given servers are enrolled, with the write that keeps them; none where nothing changes.
pub async fn plan(
    documents: &dyn Documents,
    tenant: &TenantId,
    servers: impl IntoIterator<Item = &Server>,
) -> Result<(Allotment, Option<Write>), EnrolError> {
    let key = Key::new(tenant, Kind::Aliases, "");
    let stored = documents.get(&key).await?;
    let (before, expect) = match &stored {
        Some(document) => (store::decode(&document.body)?, Expect::Version(document.version)),
        None => (Allotment::default(), Expect::Absent),
    };
    let change: Vec<Newcomer<'_>> = servers
        .into_iter()
        .map(|server| Newcomer {
            id: &server.id,
            name: server.name.as_deref().unwrap_or(server.id.as_str()),
            explicit: server.alias.as_ref(),
        })
        .collect();
    let after = allot(&before, &change)?;
    let write = (after != before).then(|| Write::put(key, expect, store::encode(&after)));
    Ok((after, write))
}

/// Enrols the servers of one change. Two nodes that do so at once agree: the loser reads again.
pub async fn enrol(documents: &dyn Documents, tenant: &TenantId, servers: &[Server]) -> Result<Allotment, EnrolError> {
    loop {
        let (after, write) = plan(documents, tenant, servers).await?;
        let Some(write) = write else { return Ok(after) };
        match documents.write(tenant, vec![write]).await {
            Ok(_) => return Ok(after),
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
