//! What `[identity]` requires of a sign-in, and the roles that it takes from the firm's directory.

use super::reader::Reader;
use chancery_domain::Role;
use chancery_portal::{DirectoryRoles, SignInRequirements};
use std::collections::BTreeMap;

/// Claims that the portal checks by their own rules. To require a value here would be a mistake.
const OWN_CLAIMS: [&str; 9] = ["iss", "sub", "aud", "exp", "iat", "nonce", "auth_time", "acr", "amr"];

pub fn requirements(reader: &mut Reader) -> SignInRequirements {
    const CLAIMS: &str = "identity.required_claims";
    let mut claims = BTreeMap::new();
    for name in names_in(reader, CLAIMS) {
        let key = format!("{CLAIMS}.{name}");
        let values = reader.json_values(&key);
        match name.as_str() {
            "acr" => reader.problem(&key, "use identity.require_acr instead"),
            "amr" => reader.problem(&key, "use identity.require_amr instead"),
            own if OWN_CLAIMS.contains(&own) => {
                reader.problem(&key, "is checked at every sign-in anyway; remove it");
            }
            _ => {
                claims.insert(name, values);
            }
        }
    }
    let (acr, amr) = (reader.texts("identity.require_acr"), reader.texts("identity.require_amr"));
    SignInRequirements { claims, acr, amr }
}

pub fn roles(reader: &mut Reader) -> Option<DirectoryRoles> {
    const CLAIM: &str = "identity.roles_claim";
    const ROLES: &str = "identity.roles";
    let claim = reader.optional_text(CLAIM);
    let mut by_value = BTreeMap::new();
    for value in names_in(reader, ROLES) {
        let key = format!("{ROLES}.{value}");
        let role = reader.optional_text(&key).unwrap_or_default();
        match role.parse::<Role>() {
            Ok(role) => {
                by_value.insert(value, role);
            }
            Err(error) => reader.problem(&key, format!("unknown role {role:?}: {error}")),
        }
    }
    match (claim, by_value.is_empty()) {
        (Some(claim), false) => Some(DirectoryRoles { claim, by_value }),
        (Some(_), true) => {
            reader.problem(ROLES, "required with identity.roles_claim: set { \"your-group\" = \"partner\" }");
            None
        }
        (None, false) => {
            reader.problem(
                CLAIM,
                "required with identity.roles: set the claim that has the groups, such as \"groups\"",
            );
            None
        }
        (None, true) => None,
    }
}

/// The names in a table. An empty table has none, and is a known key.
fn names_in(reader: &mut Reader, table: &str) -> Vec<String> {
    let names = reader.names_in(table);
    if names.is_empty() {
        reader.skip(table);
        if reader.has_value(table) {
            reader.problem(table, "must be a table, such as { name = \"value\" }");
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use crate::config::Loaded;
    use crate::config::source::Source;
    use chancery_domain::Role;
    use serde_json::json;
    use std::path::Path;
    use std::time::Duration;

    fn read(text: &str) -> Result<crate::config::Identity, String> {
        let mut source = Source::default();
        source.add_file(Path::new("chancery.toml"), text).unwrap();
        let loaded = Loaded::from_source(source, Path::new("etc"), None);
        loaded.map(|loaded| loaded.config.identity).map_err(|error| error.to_string())
    }

    #[test]
    fn sign_in_requirements_and_roles_are_read_with_their_types() {
        let identity = read(
            "[identity]\nrequired_claims = { hd = \"example.com\", staff = true, level = 3, office = [\"a\", \"b\"] }\n\
             roles_claim = \"groups\"\nroles = { \"Firm Partners\" = \"partner\", staff = \"consultant\" }\n\
             require_acr = [\"aal2\"]\nrequire_amr = [\"mfa\", \"pwd\"]\nsession_recheck_min = 15",
        )
        .unwrap();
        let claims = &identity.requirements.claims;
        assert_eq!(claims["hd"], [json!("example.com")]);
        assert_eq!((&claims["staff"], &claims["level"]), (&vec![json!(true)], &vec![json!(3)]));
        assert_eq!(claims["office"], [json!("a"), json!("b")]);
        let roles = identity.roles.unwrap();
        assert_eq!(roles.claim, "groups");
        assert_eq!(roles.by_value["Firm Partners"], Role::Partner);
        assert_eq!(roles.by_value["staff"], Role::Consultant);
        assert_eq!(identity.requirements.acr, ["aal2"]);
        assert_eq!(identity.requirements.amr, ["mfa", "pwd"]);
        assert_eq!(identity.recheck_after, Some(Duration::from_secs(15 * 60)));
    }

    #[test]
    fn nothing_is_required_by_default() {
        for text in
            ["", "[identity]\nrequired_claims = {}\nroles = {}\nrequire_acr = []\nsession_recheck_min = 0"]
        {
            let identity = read(text).unwrap();
            assert_eq!(identity.requirements, chancery_portal::SignInRequirements::default(), "{text}");
            assert!(identity.roles.is_none() && identity.recheck_after.is_none(), "{text}");
        }
    }

    #[test]
    fn identity_mistakes_name_the_key_and_the_fix() {
        for (text, part) in [
            ("roles_claim = \"groups\"", "identity.roles: required with identity.roles_claim"),
            ("roles = { x = \"partner\" }", "identity.roles_claim: required with identity.roles"),
            ("roles_claim = \"g\"\nroles = { x = \"owner\" }", "identity.roles.x: unknown role \"owner\""),
            ("required_claims = { amr = \"mfa\" }", "identity.required_claims.amr: use identity.require_amr"),
            ("required_claims = { hd = 1.5 }", "identity.required_claims.hd: must be a string"),
            ("required_claims = { hd = [] }", "identity.required_claims.hd: must be a string"),
            ("required_claims = \"hd\"", "identity.required_claims: must be a table"),
            ("session_recheck_min = 2000", "identity.session_recheck_min: must be an integer from 0 to 1440"),
        ] {
            let problem = read(&format!("[identity]\n{text}")).unwrap_err();
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }
}
