//! Generates docs/authorization.md from the cases.

use super::cases::{Caller, Case, Guard};
use std::path::Path;

const HEAD: &str = "\
# Who may do what

Generated from the test cases of every route of the portal (`crates/portal/src/tests/routes/cases.rs`).
To update it, run `make authorization`. The tests fail if a route has no cases, or if the portal
responds differently.

How to read the table:

- **Action**: what the policy (`policies/portal.cedar`) decides for this person and, if the path
  contains `{id}`, for this client. `–` means that no decision is needed: the route is public, or it
  concerns only the caller.
- **consultant, not theirs**: a consultant who does not own the client. On routes for partners, a
  person with the wrong role.
- **303** sends a signed-out browser to the sign-in page. **401** is for programs, which do not ask
  for HTML, and for forms that are submitted while signed out. Their page shows the typed text again.
  A forged or ended session counts as signed out.
- **403** means denied and logged, with nothing changed: the tests compare the whole database.
  *consultant, not theirs* and *consultant, no such client* get the same bytes and headers. Only
  partners, who may read every client, get **404**.
- In the tests, the identity provider is down (503 at sign-in), the callback does not belong to a
  sign-in (400), no sign-in is waiting for a code (410), and no logout token is sent (400).
- Everybody has just signed in. Creating and rotating keys, changing roles, inviting partners,
  resetting second factors, closing accounts and exporting clients need a sign-in from the last 10
  minutes; without one, browsers are sent to sign in again, and programs get **403** with the code
  `reauthentication_required`.
- An empty cell means that the case does not apply.

";

pub(super) fn written(cases: &[Case]) -> String {
    let mut text = HEAD.to_owned();
    let callers: Vec<_> = Caller::ALL.iter().map(ToString::to_string).collect();
    text += &format!("| Route | Action | {} |\n", callers.join(" | "));
    text += &format!("|---|---|{}\n", "---|".repeat(callers.len()));
    for case in cases {
        let asks = case.asks.map_or("–".to_owned(), |action| format!("`{action}`"));
        let cell =
            |principal: &Caller| case.expected(*principal).map_or(String::new(), |status| status.to_string());
        let cells: Vec<_> = Caller::ALL.iter().map(cell).collect();
        // The version changes with the scripts' content.
        let path = case.path.replace(env!("CHANCERY_SCRIPTS_VERSION"), "…");
        text += &format!("| `{} {path}` | {asks} | {} |\n", case.method, cells.join(" | "));
    }
    let open = cases.iter().filter(|case| matches!(case.guard, Guard::Open { .. })).count();
    text += &format!(
        "\n{} routes, {open} of them public, and {} cases. The stylesheet and the favicon under `/assets/` are also public.\n",
        cases.len(),
        cases.iter().flat_map(|case| Caller::ALL.map(|principal| case.expected(principal))).flatten().count(),
    );
    text
}

/// Compares the file with the expected text, or rewrites it if `CHANCERY_RENEW_DOCS` is set.
pub(super) fn keep(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    if std::env::var_os("CHANCERY_RENEW_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == text, "{file} differs; run `make authorization`");
}
