//! People of a firm with three nodes behind a balancer that sends every connection to the next node. Sign-in starts on one
//! node and completes on another, a session created on one works on all, and one that is ended anywhere is ended everywhere
//! from the next request on.

use super::cluster::{Cluster, Parts, Plan};
use super::round_robin_proxy::RoundRobinProxy;
use crate::office::{SignedInUser, sign_in};
use crate::test_backends::PostgresAndRedis;
use reqwest::StatusCode;

/// The cluster, and one balancer for each of the two origins.
struct Firm {
    cluster: Cluster,
    portal: String,
    _balancers: [RoundRobinProxy; 2],
    _shared: PostgresAndRedis,
}

/// Requests that one person may make in a minute, on all nodes together.
const PERSON_RPM: usize = 60;

async fn open() -> Firm {
    let shared = PostgresAndRedis::start("sessions");
    let ((portal_port, portal), (auth_port, auth)) =
        (RoundRobinProxy::bind().await, RoundRobinProxy::bind().await);
    let (portal_url, issuer) =
        (format!("http://localhost:{portal_port}"), format!("http://127.0.0.1:{auth_port}"));
    let settings = [
        ("CHANCERY_PORTAL__PUBLIC_URL", portal_url.as_str()),
        ("CHANCERY_IDENTITY__ISSUER", &issuer),
        ("CHANCERY_AUTH__ENABLED", "true"),
        ("CHANCERY_PORTAL__PERSON_RPM", &PERSON_RPM.to_string()),
    ];
    let (database_url, redis_url) = (&shared.database.url(), &shared.redis.url());
    let plan = Plan { database_url, redis_url, generation: 1, settings: &settings, parts: Parts::All };
    let cluster = tokio::task::block_in_place(|| Cluster::start(&plan));
    let addresses = |part: fn(&crate::server::Server) -> &String| {
        cluster.nodes.iter().map(|node| part(&node.server).clone()).collect::<Vec<_>>()
    };
    let balancers = [
        RoundRobinProxy::start(portal, &addresses(|server| &server.portal)),
        RoundRobinProxy::start(auth, &addresses(|server| &server.auth)),
    ];
    Firm { cluster, portal: portal_url, _balancers: balancers, _shared: shared }
}

impl Firm {
    /// Returns each node's status for the client list.
    async fn on_every_node(&self, person: &SignedInUser) -> Vec<StatusCode> {
        let mut statuses = Vec::new();
        for node in &self.cluster.nodes {
            statuses.push(person.at(&node.server.portal).json("/clients").await.status);
        }
        statuses
    }

    /// Returns how many nodes have served that path.
    fn nodes_serving(&self, path: &str) -> usize {
        let nodes = self
            .cluster
            .nodes
            .iter()
            .filter(|node| node.server.logged_requests().iter().any(|line| line["path"] == path));
        nodes.count()
    }
}

const EVERYWHERE: [StatusCode; 3] = [StatusCode::OK; 3];
const NOWHERE: [StatusCode; 3] = [StatusCode::UNAUTHORIZED; 3];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_its_end_and_its_request_limit_hold_on_all_nodes() {
    let firm = open().await;
    let demo = firm.cluster.firm();
    // Every step uses a different node, including the portal's own requests to the provider.
    let [maya, omar, ruth] = [
        sign_in(demo, &firm.portal, "maya").await,
        sign_in(demo, &firm.portal, "omar").await,
        sign_in(demo, &firm.portal, "ruth").await,
    ];
    for path in ["/auth/sign-in", "/auth/callback", "/authorize", "/sign-in", "/token"] {
        assert!(firm.nodes_serving(path) > 1, "{path} was asked of one node alone");
    }
    for person in [&maya, &omar, &ruth] {
        assert_eq!(firm.on_every_node(person).await, EVERYWHERE, "{}", person.email);
    }
    let node = |number: usize| &firm.cluster.nodes[number].server.portal;

    // By herself, on the second node.
    let away = maya.at(node(1)).post("/auth/sign-out", &[]).await;
    assert_eq!(away.status.as_u16(), 303, "{}", away.body);
    assert_eq!(firm.on_every_node(&maya).await, NOWHERE);

    // By a partner, on the third node.
    let team = ruth.at(node(0)).json("/team").await.value();
    let people = team["people"].as_array().unwrap();
    let omars = people.iter().find(|one| one["email"] == omar.email.as_str()).unwrap()["id"].to_string();
    let ended = ruth.at(node(2)).post("/team/sign-out", &[("person", &omars)]).await;
    assert_eq!(ended.status.as_u16(), 303, "{}", ended.body);
    assert_eq!(firm.on_every_node(&omar).await, NOWHERE);

    // Each node alone would allow all of its 30. Ruth has sent a few requests before.
    let mut allowed = 0;
    for node in firm.cluster.nodes.iter().cycle().take(90) {
        let reply = ruth.at(&node.server.portal).json("/clients").await;
        match reply.status {
            StatusCode::OK => allowed += 1,
            status => {
                assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{}", reply.body);
                assert!(reply.headers.contains_key("retry-after"), "{:?}", reply.headers);
            }
        }
    }
    assert!((PERSON_RPM / 2..=PERSON_RPM).contains(&allowed), "{allowed} of 90 requests");

    // By the command line, on the third node.
    firm.cluster.nodes[2].firm.run(&["user", "sign-out", &ruth.email]);
    assert_eq!(firm.on_every_node(&ruth).await, NOWHERE);
}
