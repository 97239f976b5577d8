//! `chancery client assign`: a client gets another owner, from the next request on.

use crate::cli::Who;
use crate::commands::user;
use crate::operator::Operator;
use crate::output::say;
use anyhow::bail;
use chancery_domain::ClientId;
use chancery_policy::{ClientInQuestion, ReassignClient};
use chancery_store::{AdminStore, Changed, ClientError};

/// How often it is tried anew when somebody else gives the client away in the same moment.
const ATTEMPTS: usize = 3;

pub async fn run(store: &AdminStore, id: ClientId, who: &Who) -> anyhow::Result<()> {
    let to = user::find(store, who).await?;
    let operator = Operator::new()?;
    for _ in 0..ATTEMPTS {
        let Some(owner) = store.clients.owner_of(id).await? else { break };
        if owner == to.id {
            say!("client {id} is {}'s already", to.email);
            return Ok(());
        }
        let about = ClientInQuestion { id, owner: Some(owner) };
        let permit = operator.ask::<ReassignClient>(store, about).await?;
        match store.clients.reassign_client(permit, to.id).await {
            Ok(Changed::Saved(client)) => {
                say!("client {id}, {}, is {}'s from the next request on", client.name, to.email);
                return Ok(());
            }
            Ok(Changed::Gone) => break,
            Ok(Changed::Conflict(_)) | Err(ClientError::OwnerChanged(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match store.clients.owner_of(id).await? {
        None => bail!("there is no client {id}; `chancery client list` shows the numbers"),
        Some(_) => bail!("client {id} is being changed by somebody else; try again"),
    }
}
