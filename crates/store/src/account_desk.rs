//! The queries about billing accounts and keys, for those who manage them in the portal.

use crate::StoreError;
use crate::billing_traits::*;
use crate::both::for_both_stores;
use chancery_domain::*;
use chancery_policy::*;

for_both_stores! {
    impl AccountDesk {
    async fn read_accounts(
        &self,
        permit: Permit<ReadAccounts>,
        month: Month,
    ) -> Result<(Vec<AccountOverview>, Vec<KeyUse>), StoreError> {
            Err(StoreError::Unavailable("this is still to be written".to_owned()))
        }
    async fn read_account(
        &self,
        permit: Permit<ReadAccounts>,
        account: AccountId,
        month: Month,
    ) -> Result<Option<AccountRecord>, StoreError> {
            Err(StoreError::Unavailable("this is still to be written".to_owned()))
        }
    async fn do_with_account(
        &self,
        permit: Permit<ManageAccounts>,
        deed: AccountDeed,
    ) -> Result<AccountDone, StoreError> {
            Err(StoreError::Unavailable("this is still to be written".to_owned()))
        }
}
}
