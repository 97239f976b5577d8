//! `chancery client assign`: gives a client another owner, effective from the next request.

use crate::cli::UserSelector;
use crate::commands::user;
use crate::operator::Operator;
use crate::output::outln;
use anyhow::bail;
use chancery_domain::ClientId;
use chancery_policy::{ClientResource, ReassignClient};
use chancery_store::{AdminStore, ClientError, SaveOutcome};

/// Attempts when another process reassigns the client at the same time.
const ATTEMPTS: usize = 3;

pub async fn run(store: &AdminStore, id: ClientId, selector: &UserSelector) -> anyhow::Result<()> {
    let to = user::find(store, selector).await?;
    let operator = Operator::new()?;
    for _ in 0..ATTEMPTS {
        let Some(owner) = store.clients.owner_of(id).await? else { break };
        if owner == to.id {
            outln!("client {id} is already assigned to {}", to.email);
            return Ok(());
        }
        let resource = ClientResource { id, owner: Some(owner) };
        let permit = operator.authorize::<ReassignClient>(store, resource).await?;
        match store.clients.reassign_client(permit, to.id, None).await {
            Ok(SaveOutcome::Saved(client)) => {
                outln!("client {id} ({}) assigned to {}", client.name, to.email);
                return Ok(());
            }
            Ok(SaveOutcome::NotFound) => break,
            Ok(SaveOutcome::Conflict(_)) | Err(ClientError::OwnerChanged(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match store.clients.owner_of(id).await? {
        None => bail!("client {id} not found; run `chancery client list` to see all clients"),
        Some(_) => bail!("client {id} was changed at the same time; try again"),
    }
}
