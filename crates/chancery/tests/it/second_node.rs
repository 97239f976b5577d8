//! Several servers on one database: servers that together could exceed rate limits do not start, and a server that
//! loses its lock to another admits nothing.

use crate::server::{Firm, Reply, client, eventually, request};
use chancery_test_support::{PostgresDatabase, RedisServer, psql};
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

const SHARED: &str = "set `limits.store = \"redis://…\"` on all servers";

#[test]
fn second_server_on_one_sqlite_file_is_rejected_but_commands_work() {
    let folder = tempfile::tempdir().unwrap();
    let redis = RedisServer::start();
    let url = format!("sqlite:{}", folder.path().join("shared.db").display());
    let node = || Firm::new().with("CHANCERY_DATABASE__URL", &url);
    let (first, second) = (node(), node());
    let server = first.start();
    for second in [&second, &node().with("CHANCERY_LIMITS__STORE", &redis.url())] {
        let text = second.fail(&["serve"]);
        assert!(text.contains("another chancery server") && text.contains("shared.db"), "{text}");
        assert!(text.contains("PostgreSQL") && text.contains("limits.store"), "{text}");
        second.run(&["account", "list"]);
    }
    drop(server);
    drop(second.start());
}

#[test]
fn memory_limits_allow_one_server_on_postgresql_and_redis_limits_many() {
    let (redis, database) = (RedisServer::start(), PostgresDatabase::create("second_node"));
    let node = || Firm::new().with("CHANCERY_DATABASE__URL", &database.url());
    let in_memory = [node(), node()];
    let in_redis = [node(), node()].map(|firm| firm.with("CHANCERY_LIMITS__STORE", &redis.url()));

    let server = in_memory[0].start();
    let text = in_memory[1].fail(&["serve"]);
    assert!(text.contains("another chancery server") && text.contains(SHARED), "{text}");
    let text = in_redis[0].fail(&["serve"]);
    assert!(
        text.contains("another chancery server") && text.contains("set `limits.store` on the other server"),
        "{text}"
    );
    in_memory[1].run(&["account", "list"]);
    drop(server);

    let servers = in_redis.each_ref().map(Firm::start);
    let text = in_memory[0].fail(&["serve"]);
    assert!(text.contains("another chancery server") && text.contains(SHARED), "{text}");
    drop(servers);
    drop(in_memory[0].start());
}

#[tokio::test]
async fn server_that_lost_its_lock_admits_nothing_until_reacquired() {
    let database = PostgresDatabase::create("lost_place");
    let firm = Firm::new().with("CHANCERY_DATABASE__URL", &database.url());
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let body = request("", "Say hello.", 1);
    assert_eq!(server.generate(&key, &body).await.status, 200);

    // Another session waits for the lock and gets it as soon as the server's session ends.
    let mut other = psql(&database.url()).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut statements = other.stdin.take().unwrap();
    writeln!(statements, "SELECT pg_advisory_lock({});", i64::from_be_bytes(*b"chanserv")).unwrap();
    let locks = "FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
                 WHERE l.locktype = 'advisory' AND d.datname = current_database()";
    let wait_and_end = format!(
        "DO $$ BEGIN WHILE NOT EXISTS (SELECT 1 {locks} AND NOT l.granted) LOOP PERFORM pg_sleep(0.01); END LOOP; END $$; \
         SELECT pg_terminate_backend(l.pid) {locks} AND l.granted"
    );
    database.query(&wait_and_end);
    let ready =
        async || Reply::read(client().get(format!("{}/readyz", server.ops)).send().await.unwrap()).await;
    eventually("the server knows that it lost its lock", Duration::from_secs(10), async || {
        ready().await.status == 503
    })
    .await;
    let reason = ready().await.body["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("another chancery server"), "{reason}");
    let rejected = server.generate(&key, &body).await;
    assert_eq!((rejected.status, rejected.code()), (503, "unavailable"), "{}", rejected.body);
    server.wait_for_log("serving lock lost");

    drop(statements);
    other.wait().unwrap();
    eventually("the server has its lock again", Duration::from_secs(10), async || {
        server.generate(&key, &body).await.status == 200
    })
    .await;
    assert_eq!(ready().await.status, 200);
}
