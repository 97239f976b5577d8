//! Whether the model that drafts letters is there yet. A demo starts with a small model and fetches a better one meanwhile.

use tokio::sync::watch;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftingModelState {
    /// No better model is on its way.
    Ready,
    /// A better model is being downloaded or loaded.
    Fetching { percent: u8 },
    /// There will be no better model. `reason` is a clause for the user, without a full stop.
    Unavailable { reason: String },
}

impl DraftingModelState {
    /// What the page says about it; `None` if there is nothing to say.
    pub fn notice(&self) -> Option<String> {
        match self {
            Self::Ready => None,
            Self::Fetching { percent } => Some(format!(
                "A better model is being downloaded ({percent}%). Until it is ready, letters are drafted with the current one."
            )),
            Self::Unavailable { reason } => Some(format!("A better model is not available: {reason}.")),
        }
    }
}

/// The current state, which changes while the portal runs.
pub type DraftingModelStatus = watch::Receiver<DraftingModelState>;

/// For a portal whose models are all configured.
pub(crate) fn always_ready() -> DraftingModelStatus {
    watch::channel(DraftingModelState::Ready).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portal_that_fetches_nothing_has_nothing_to_say() {
        assert_eq!(always_ready().borrow().notice(), None);
    }

    #[test]
    fn notice_says_how_far_the_model_is_or_why_there_is_none() {
        let fetching = DraftingModelState::Fetching { percent: 40 }.notice().unwrap();
        assert!(fetching.starts_with("A better model is being downloaded (40%)."), "{fetching}");
        let unavailable = DraftingModelState::Unavailable { reason: "the disk is full".to_owned() };
        assert_eq!(unavailable.notice().unwrap(), "A better model is not available: the disk is full.");
    }
}
