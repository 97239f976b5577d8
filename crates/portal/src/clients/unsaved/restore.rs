//! Puts unsaved text back into a form that its person opens again.

use crate::clients::details_form::{DetailsForm, DetailsInput};
use crate::clients::entry_form::{EntryForm, EntryInput};
use crate::drafting::limits::MAX_PREVIOUS_TEXTS;
use crate::error::PageError;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::DisplayTime;
use chancery_domain::{ClientId, TokenHash};
use chancery_policy::EditClient;
use chancery_store::UnsavedForm;
use serde::de::DeserializeOwned;

/// Who opens a form, and in which session.
#[derive(Clone, Copy)]
pub(crate) struct FormReader<'a> {
    pub(crate) portal: &'a Portal,
    pub(crate) signed_in: &'a SignedIn,
    pub(crate) client: ClientId,
    pub(crate) session: Option<TokenHash>,
}

impl FormReader<'_> {
    pub(crate) async fn entry(self, form: EntryForm) -> Result<EntryForm, PageError> {
        let opened = form.entry.map_or(UnsavedForm::NewEntry(form.kind), UnsavedForm::Entry);
        match self.unsaved::<EntryInput>(opened).await? {
            Some((typed, at)) => Ok(form.restored(typed, at)),
            None => Ok(form),
        }
    }

    /// A form that starts from a template. Unsaved text of the same form is offered as an earlier text.
    pub(crate) async fn template(self, form: EntryForm) -> Result<EntryForm, PageError> {
        let Some((typed, _)) = self.unsaved::<EntryInput>(UnsavedForm::NewEntry(form.kind)).await? else {
            return Ok(form);
        };
        // Browsers send line breaks as CRLF.
        let text = typed.text.replace("\r\n", "\n");
        let is_other = !text.trim().is_empty() && text.trim() != form.text.trim();
        let texts = is_other.then_some(text).into_iter().chain(typed.previous_texts);
        Ok(EntryForm { previous_texts: texts.take(MAX_PREVIOUS_TEXTS).collect(), ..form })
    }

    pub(crate) async fn details(self, form: DetailsForm) -> Result<DetailsForm, PageError> {
        match self.unsaved::<DetailsInput>(UnsavedForm::Details).await? {
            Some((typed, at)) => Ok(form.restored(typed, at)),
            None => Ok(form),
        }
    }

    /// The stored text and its time. Text in a format of another version is left alone.
    async fn unsaved<T: DeserializeOwned>(
        self,
        form: UnsavedForm,
    ) -> Result<Option<(T, DisplayTime)>, PageError> {
        let Some(session) = self.session else { return Ok(None) };
        let Self { portal, signed_in, client, .. } = self;
        let open = |permit| portal.store.clients.open_form(permit, form, session);
        let text = portal.with_client_permit::<EditClient, _, _>(signed_in, client, open).await?;
        Ok(text.and_then(|text| {
            let typed = serde_json::from_str(&text.fields).ok()?;
            Some((typed, DisplayTime::new(text.saved_at, &signed_in.local_time(portal))))
        }))
    }
}
