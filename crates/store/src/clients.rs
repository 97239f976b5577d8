//! The queries about client records.

use crate::both::for_both_stores;
use crate::*;
use chancery_domain::*;
use chancery_policy::*;

for_both_stores! {
    impl ClientRecords {
    async fn owner_of(&self, _client: ClientId) -> Result<Option<PersonId>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn note_denial(&self, _denial: Denial) -> Result<(), StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn list_clients(
        &self,
        _permit: Permit<ListClients>,
        _query: &ClientQuery,
    ) -> Result<ClientPage, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn read_client(
        &self,
        _permit: Permit<ReadClient>,
        _wanted: &EntriesWanted,
    ) -> Result<Option<ClientRecord>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn read_for_letter(
        &self,
        _permit: Permit<EditClient>,
        _entries: &[EntryId],
    ) -> Result<Option<(Client, Vec<Entry>)>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn client_versions(
        &self,
        _permit: Permit<ReadClient>,
    ) -> Result<Option<(Client, Vec<ClientVersion>)>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn entry_versions(
        &self,
        _permit: Permit<ReadClient>,
        _entry: EntryId,
    ) -> Result<Option<(Entry, Vec<EntryVersion>)>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn create_client(
        &self,
        _permit: Permit<CreateClient>,
        _new: NewClient,
    ) -> Result<ClientId, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn import_clients(
        &self,
        _clients: Vec<(Permit<CreateClient>, NewClient)>,
        _progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Vec<ClientId>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn edit_client(
        &self,
        _permit: Permit<EditClient>,
        _change: ClientChange,
    ) -> Result<Changed<Client>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn set_client_archived(
        &self,
        _permit: Permit<ArchiveClient>,
        _is_archived: bool,
    ) -> Result<Changed<Client>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn reassign_client(
        &self,
        _permit: Permit<ReassignClient>,
        _to: PersonId,
    ) -> Result<Changed<Client>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn reassign_clients(
        &self,
        _permits: Vec<Permit<ReassignClient>>,
        _to: PersonId,
    ) -> Result<u64, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn add_entry(&self, _permit: Permit<EditClient>, _new: NewEntry) -> Result<Entry, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn edit_entry(
        &self,
        _permit: Permit<EditClient>,
        _change: EntryChange,
    ) -> Result<Changed<Entry>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn set_entry_archived(
        &self,
        _permit: Permit<EditClient>,
        _entry: EntryId,
        _is_archived: bool,
    ) -> Result<Changed<Entry>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn ownerships(
        &self,
        _permit: &Permit<ListClients>,
        _owner: Option<PersonId>,
        _after: Option<ClientId>,
        _limit: u32,
    ) -> Result<Vec<Ownership>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn export_clients(
        &self,
        _permits: Vec<Permit<ExportClient>>,
    ) -> Result<Vec<ClientRecord>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn has_clients(&self) -> Result<bool, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    }
}
for_both_stores! {
    impl Audit {
    async fn read_audit(
        &self,
        _permit: Permit<ReadAudit>,
        _query: &AuditQuery,
    ) -> Result<Vec<AuditLine>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn read_more_audit(
        &self,
        _permit: &Permit<ReadAudit>,
        _query: &AuditQuery,
    ) -> Result<Vec<AuditLine>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn read_team(
        &self,
        _permit: Permit<ReadTeam>,
        _times: SessionTimes,
    ) -> Result<Vec<TeamMember>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn note_managing_team(&self, _permit: Permit<ManageTeam>) -> Result<(), StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn audit_writer_after(&self, _writer: Option<WriterId>) -> Result<Option<WriterId>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn audit_chain_head(&self, _writer: WriterId) -> Result<Option<ChainHead>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    async fn audit_rows(
        &self,
        _writer: WriterId,
        _from: u64,
        _limit: u32,
    ) -> Result<Vec<ChainedAuditRow>, StoreError> {
            Err(StoreError::Unavailable("client records are being built".to_owned()))
        }
    }
}
