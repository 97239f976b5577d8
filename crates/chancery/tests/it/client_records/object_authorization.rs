//! Runs schemathesis on the portal with `docs/portal-openapi.json`, as two consultants who must not see each other's clients and
//! as a partner. Its object-level authorization check takes a record returned to one of them and requests it as the other.

use super::number;
use crate::office::{Office, SignedInUser};
use crate::server::{Firm, clean_command, schemathesis};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const SEED: &str = "20261115";
const EXAMPLES_PER_OPERATION: &str = "15";
/// Takes less than a minute on two cores; the rest is headroom for a busy machine.
const TIMEOUT_S: &str = "240";
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,ignored_auth,\
    object_level_authorization";

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/portal-openapi.json")
}

/// The identities, in the format that schemathesis reads.
fn identities(people: [&SignedInUser; 3]) -> Value {
    let headers =
        |person: &SignedInUser| json!([{"name": "Cookie", "value": format!("session={}", person.session)}]);
    let identity = |person| json!({"name": SignedInUser::name(person), "fixedHeaders": headers(person)});
    json!({"auth": people.map(identity)})
}

/// Runs it as this person; returns its report.
fn run_as(office: &Office, folder: &Path, person: &SignedInUser, configuration: &str) -> String {
    std::fs::write(folder.join("schemathesis.toml"), configuration).unwrap();
    let mut command = clean_command("timeout");
    command.arg(TIMEOUT_S).arg(schemathesis()).arg("run").arg(document());
    command.args(["--url", &office.server.portal, "--seed", SEED, "--max-examples", EXAMPLES_PER_OPERATION]);
    command.args([
        "--checks",
        CHECKS,
        "--header",
        "Accept: application/json",
        "--continue-on-failure",
        "--no-color",
    ]);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.current_dir(folder).output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{} as {}: {report}\n{errors}\nseed {SEED}",
        output.status,
        person.email
    );
    report
}

#[tokio::test]
async fn schemathesis_finds_no_access_to_other_consultants_clients() {
    // One person sends all requests of a run, as fast as they are answered.
    let firm = Firm::new().with("CHANCERY_PORTAL__PERSON_RPM", "1000000");
    let server = firm.start_with(&["--demo", "--minimal"]);
    let office = Office { firm, server };
    let (maya, omar, ruth) =
        (office.sign_in("maya").await, office.sign_in("omar").await, office.sign_in("ruth").await);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("people.json"), identities([&maya, &omar, &ruth]).to_string()).unwrap();

    let configuration = "[auth.wfc]\npath = \"people.json\"\nuser = \"maya\"\npeers = [\"maya\", \"omar\"]\n";
    let before = probes(&ruth, &omar, &maya).await;
    let report = run_as(&office, folder.path(), &maya, configuration);
    // Proves that it sent requests: the audit log must contain the denied attempts.
    let after = probes(&ruth, &omar, &maya).await;
    assert!(after > before, "omar never asked for a client of maya: {report}");

    let report =
        run_as(&office, folder.path(), &ruth, "[auth.wfc]\npath = \"people.json\"\nuser = \"ruth\"\n");
    let answered = |path: &str, status: u64| {
        let logged = office.server.logged_requests();
        logged.iter().filter(|line| line["path"] == path && line["status"] == status).count()
    };
    for (path, rejection) in [("/clients", 400), ("/team", 403), ("/audit", 422)] {
        assert!(answered(path, 200) >= 3, "{path} was never answered: {report}");
        assert!(answered(path, rejection) >= 3, "{path} was never refused: {report}");
        assert!(answered(path, 401) >= 1, "{path} was never asked for without a session: {report}");
    }
}

/// Returns how often this person was denied one of that owner's clients, from the audit log.
async fn probes(partner: &SignedInUser, person: &SignedInUser, owner: &SignedInUser) -> usize {
    let clients: Vec<_> = owner.clients().await.iter().map(number).collect();
    let mut address = "/audit?action=readClient&decision=refused".to_owned();
    let mut found = 0;
    loop {
        let page = partner.json(&address).await.value();
        let rows = page["rows"].as_array().unwrap().iter();
        let of_person = rows.filter(|row| row["person"]["email"] == person.email.as_str());
        found +=
            of_person.filter(|row| row["client"].as_i64().is_some_and(|id| clients.contains(&id))).count();
        match page["older"].as_str() {
            Some(older) => address = older.to_owned(),
            None => return found,
        }
    }
}
