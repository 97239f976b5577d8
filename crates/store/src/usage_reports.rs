//! The queries about what was used in a month, and about refusals and peaks.

use crate::StoreError;
use crate::billing_traits::*;
use crate::both::for_both_stores;
use chancery_policy::*;

for_both_stores! {
    impl UsageReports {
    async fn read_usage(&self, permit: Permit<ReadUsage>, query: UsageMonth)
    -> Result<UsageReport, StoreError> {
            Err(StoreError::Unavailable("this is still to be written".to_owned()))
        }
    async fn note_activity(&self, refused: &[RefusedDay], peaks: &[PeakDay]) -> Result<(), StoreError> {
            Err(StoreError::Unavailable("this is still to be written".to_owned()))
        }
}
}
