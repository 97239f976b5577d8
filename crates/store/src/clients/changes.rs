//! Changes of a client: its facts, whether it is put away, and whose it is. Each is its next version, and every version is kept.

use crate::audit::step::Stopped;
use crate::clients::entries::changed_by;
use crate::clients::rows::{HoldClients, StoredClient, StoredFacts, person_ref};
use crate::clients::search::{ClientWords, sort_name, words_of};
use crate::db::both::{Statement, for_both_connections, push_list, stored_row};
use crate::db::error_codes::within_time;
use crate::{Changed, ClientChange, ClientVersion, StoreError, VersionsWanted};
use chancery_domain::{Asked, Client, ClientId, PersonId, UnixMillis, Version};
use chancery_policy::{Act, Permit};
use sqlx::{PgConnection, SqliteConnection};
use std::collections::HashMap;

/// Clients that one statement holds or changes.
const MAX_CLIENTS_AT_ONCE: usize = 500;

const SET_FACTS: &str = "UPDATE clients SET version = $2, name = $3, sort_name = $4, contact = $5, email = $6, \
    telephone = $7, address = $8, since_day = $9 WHERE id = $1";
const SET_ARCHIVED: &str =
    "UPDATE clients SET version = version + 1, archived_at_ms = $2, is_archived = $3 WHERE id = $1";

const SET_WORDS_ARCHIVED: &str = "UPDATE client_words SET is_archived = $2 WHERE client_id = $1";
const KEEP_VERSION: &str = "INSERT INTO client_versions (client_id, version, name, contact, email, telephone, address, \
    since_day, owner_id, is_archived, by_id, at_ms) \
    SELECT c.id, c.version, c.name, c.contact, c.email, c.telephone, c.address, c.since_day, c.owner_id, c.is_archived, \
    $2, $3 FROM clients c WHERE c.id = $1";

macro_rules! version_columns {
    () => {
        "SELECT v.version, v.name, v.contact, v.email, v.telephone, v.address, v.since_day, v.owner_id, \
        o.email AS owner_email, v.is_archived, v.by_id, p.email AS by_email, v.at_ms FROM client_versions v \
        JOIN people o ON o.id = v.owner_id LEFT JOIN people p ON p.id = v.by_id WHERE v.client_id = $1 AND "
    };
}

const PAGE_OF_VERSIONS: &str = concat!(version_columns!(), "v.version < $2 ORDER BY v.version DESC LIMIT $3");
const TWO_VERSIONS: &str = concat!(version_columns!(), "v.version IN ($2, $3) ORDER BY v.version DESC");

stored_row! {
    struct StoredClientVersion {
        version: i64,
        owner_id: i64,
        owner_email: String,
        is_archived: bool,
        by_id: Option<i64>,
        by_email: Option<String>,
        at_ms: i64,
        ..facts: StoredFacts,
    }
}

impl StoredClientVersion {
    fn into_version(self) -> Result<ClientVersion, StoreError> {
        let (name, facts) = self.facts.into_facts()?;
        Ok(ClientVersion {
            version: Version(self.version),
            name,
            facts,
            owner: person_ref(self.owner_id, &self.owner_email)?,
            is_archived: self.is_archived,
            by: changed_by(self.by_id, self.by_email.as_deref())?,
            at: UnixMillis(self.at_ms),
        })
    }
}

stored_row! {
    struct StoredOwner {
        id: i64,
        owner_id: i64,
    }
}

/// How several clients are held at once.
trait HoldSeveral {
    const TO_READ_ALL: &'static str;
    const TO_CHANGE_ALL: &'static str;
}

impl HoldSeveral for SqliteConnection {
    const TO_READ_ALL: &'static str = "";
    const TO_CHANGE_ALL: &'static str = "";
}

impl HoldSeveral for PgConnection {
    const TO_READ_ALL: &'static str = " FOR SHARE";
    const TO_CHANGE_ALL: &'static str = " FOR NO KEY UPDATE";
}

/// What several clients are held for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldFor {
    Reading,
    Changing,
}

/// Whether the client is whose it was when the policy was asked.
pub(crate) fn is_still_owned<A: Act>(owners: &HashMap<ClientId, PersonId>, permit: &Permit<A>) -> bool {
    permit.client().and_then(|client| owners.get(&client).copied()) == permit.owner()
}

#[async_trait::async_trait]
pub(crate) trait ClientChanges {
    /// Newest first.
    async fn versions_of_client(
        &mut self,
        client: &Client,
        wanted: VersionsWanted,
    ) -> Result<Vec<ClientVersion>, Stopped>;

    /// Changes what is different, if the version is still the one that was seen.
    async fn change_client(
        &mut self,
        asked: &Asked,
        client: StoredClient,
        change: &ClientChange,
    ) -> Result<Changed<Client>, Stopped>;

    async fn put_client_away(
        &mut self,
        asked: &Asked,
        client: StoredClient,
        is_archived: bool,
    ) -> Result<Changed<Client>, Stopped>;

    /// The owners of those that are there, held in the order of their numbers, so that nobody waits for somebody who waits.
    async fn hold_all(
        &mut self,
        clients: &[ClientId],
        held_for: HeldFor,
    ) -> Result<HashMap<ClientId, PersonId>, Stopped>;

    /// Gives the clients another owner, by one decision's asker and time.
    async fn move_clients(
        &mut self,
        asked: &Asked,
        clients: &[ClientId],
        to: PersonId,
    ) -> Result<(), Stopped>;

    /// Keeps the client as it is now as a version.
    async fn keep_version(&mut self, asked: &Asked, client: ClientId) -> Result<(), Stopped>;

    /// As it is now, in this transaction.
    async fn client_now(&mut self, client: ClientId) -> Result<Option<Client>, Stopped>;
}

for_both_connections! {
    impl ClientChanges {
        async fn versions_of_client(
            &mut self,
            client: &Client,
            wanted: VersionsWanted,
        ) -> Result<Vec<ClientVersion>, Stopped> {
            let Some((statement, first, second)) = wanted.choose(client.version, PAGE_OF_VERSIONS, TWO_VERSIONS) else {
                return Ok(Vec::new());
            };
            let read = sqlx::query_as(statement).bind(client.id.0).bind(first).bind(second);
            let rows: Vec<StoredClientVersion> = read.fetch_all(&mut *self).await?;
            let versions: Result<Vec<ClientVersion>, StoreError> =
                rows.into_iter().map(StoredClientVersion::into_version).collect();
            Ok(versions?)
        }

        async fn change_client(
            &mut self,
            asked: &Asked,
            client: StoredClient,
            change: &ClientChange,
        ) -> Result<Changed<Client>, Stopped> {
            let now = client.into_client()?;
            if now.version != change.version {
                return Ok(Changed::Conflict(now));
            }
            let wanted = Client { name: change.name.clone(), facts: change.facts.clone(), ..now.clone() };
            if wanted == now {
                return Ok(Changed::Saved(now));
            }
            let saved = Client { version: now.version.next(), ..wanted };
            let facts = &saved.facts;
            sqlx::query(SET_FACTS)
                .bind(saved.id.0)
                .bind(saved.version.0)
                .bind(saved.name.as_str())
                .bind(sort_name(&saved.name))
                .bind(facts.contact.as_str())
                .bind(facts.email.as_str())
                .bind(facts.telephone.as_str())
                .bind(facts.address.as_str())
                .bind(facts.since.map(|day| i64::from(day.0)))
                .execute(&mut *self)
                .await?;
            self.keep_version(asked, saved.id).await?;
            if words_of(saved.id, &saved.name, &saved.facts) != words_of(now.id, &now.name, &now.facts) {
                self.replace_words(&saved).await?;
            }
            Ok(Changed::Saved(saved))
        }

        async fn put_client_away(
            &mut self,
            asked: &Asked,
            client: StoredClient,
            is_archived: bool,
        ) -> Result<Changed<Client>, Stopped> {
            let now = client.into_client()?;
            if now.archived_at.is_some() == is_archived {
                return Ok(Changed::Saved(now));
            }
            let archived_at = is_archived.then_some(asked.at);
            let set = sqlx::query(SET_ARCHIVED).bind(now.id.0).bind(archived_at.map(|at| at.0)).bind(is_archived);
            set.execute(&mut *self).await?;
            sqlx::query(SET_WORDS_ARCHIVED).bind(now.id.0).bind(is_archived).execute(&mut *self).await?;
            self.keep_version(asked, now.id).await?;
            Ok(Changed::Saved(Client { version: now.version.next(), archived_at, ..now }))
        }

        async fn hold_all(
            &mut self,
            clients: &[ClientId],
            held_for: HeldFor,
        ) -> Result<HashMap<ClientId, PersonId>, Stopped> {
            let mut numbers: Vec<i64> = clients.iter().map(|client| client.0).collect();
            numbers.sort_unstable();
            let mut owners = HashMap::new();
            for numbers in numbers.chunks(MAX_CLIENTS_AT_ONCE) {
                let mut hold = Statement::<Self>::new("SELECT id, owner_id FROM clients WHERE id IN ");
                push_list!(hold, numbers);
                hold.push(" ORDER BY id").push(match held_for {
                    HeldFor::Reading => Self::TO_READ_ALL,
                    HeldFor::Changing => Self::TO_CHANGE_ALL,
                });
                let hold = hold.build_query_as().persistent(numbers.len() == 1);
                let rows: Vec<StoredOwner> = within_time(hold.fetch_all(&mut *self)).await?;
                owners.extend(rows.into_iter().map(|row| (ClientId(row.id), PersonId(row.owner_id))));
            }
            Ok(owners)
        }

        async fn move_clients(
            &mut self,
            asked: &Asked,
            clients: &[ClientId],
            to: PersonId,
        ) -> Result<(), Stopped> {
            for clients in clients.chunks(MAX_CLIENTS_AT_ONCE) {
                let numbers = || clients.iter().map(|client| client.0);
                let mut set = Statement::<Self>::new("UPDATE clients SET version = version + 1, owner_id = ");
                set.push_bind(to.0).push(" WHERE id IN ");
                push_list!(set, numbers());
                within_time(set.build().persistent(clients.len() == 1).execute(&mut *self)).await?;

                let mut find = Statement::<Self>::new("UPDATE client_words SET owner_id = ");
                find.push_bind(to.0).push(" WHERE client_id IN ");
                push_list!(find, numbers());
                within_time(find.build().persistent(clients.len() == 1).execute(&mut *self)).await?;

                for client in clients {
                    self.keep_version(asked, *client).await?;
                }
            }
            Ok(())
        }

        async fn keep_version(&mut self, asked: &Asked, client: ClientId) -> Result<(), Stopped> {
            let keep = sqlx::query(KEEP_VERSION)
                .bind(client.0)
                .bind(asked.by.person().map(|person| person.0))
                .bind(asked.at.0);
            within_time(keep.execute(&mut *self)).await?;
            Ok(())
        }

        async fn client_now(&mut self, client: ClientId) -> Result<Option<Client>, Stopped> {
            let found: Option<StoredClient> =
                sqlx::query_as(Self::TO_CHANGE).bind(client.0).fetch_optional(&mut *self).await?;
            Ok(found.map(StoredClient::into_client).transpose()?)
        }
    }
}
