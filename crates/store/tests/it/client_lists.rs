//! Conformance: the client list contains exactly what the policy lets a person read. What a search finds in entries is in
//! `entry_search`.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{
    POLICY, after_s, ask, create_whole, firm_permit, listed, new_client, note, people, permit, principal,
    search_for, sign_in,
};
use chancery_domain::{ClientId, ContactDetails, Person, PersonId, Role};
use chancery_policy::{
    ArchiveClient, ClientResource, CreateClient, EditClient, NewClientResource, Permit, ReadClient,
    ReassignClient,
};
use chancery_store::{
    ArchiveChange, CLIENTS_PER_PAGE, ClientChange, ClientOrder, ClientQuery, ListTotal, MAX_COUNTED_ROWS,
    MAX_SAME_NAME_CLIENTS, NewClient, NewEntry, Store,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::sync::Arc;

const ORDERS: [ClientOrder; 8] = [
    ClientOrder::RecentFirst,
    ClientOrder::OldestFirst,
    ClientOrder::Name,
    ClientOrder::NameDescending,
    ClientOrder::Id,
    ClientOrder::IdDescending,
    ClientOrder::Owner,
    ClientOrder::OwnerDescending,
];

pub async fn search_matches_term_prefixes(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let with = |name: &str, contact: &str, email: &str| NewClient {
        details: ContactDetails {
            contact: contact.parse().unwrap(),
            email: email.parse().unwrap(),
            ..ContactDetails::default()
        },
        ..new_client(name)
    };
    let cafe =
        create_whole(&store, &people.maya, with("Café Zürich", "Priya Raman", "priya@zuerich.example"))
            .await
            .0;
    let street = create_whole(&store, &people.maya, with("STRASSE 9 GmbH", "Tom O'Neill", "")).await.0;
    let toms = create_whole(&store, &people.tom, with("Café Nord", "Priya Shah", "")).await.0;
    let query = |text: &str| ClientQuery { order: ClientOrder::Id, ..search_for(text) };
    for (text, mayas, everybodys) in [
        ("cafe", vec![cafe], vec![cafe, toms]),
        ("CAFÉ zur", vec![cafe], vec![cafe]),
        ("zur cafe", vec![cafe], vec![cafe]),
        ("straße", vec![street], vec![street]),
        ("o neill", vec![street], vec![street]),
        ("o'nei", vec![street], vec![street]),
        ("priya", vec![cafe], vec![cafe, toms]),
        ("riya", vec![], vec![]),
        ("100", vec![cafe, street], vec![cafe, street, toms]),
        ("1002", vec![street], vec![street]),
        ("zuerich.example", vec![cafe], vec![cafe]),
        ("priya cafe nord extra", vec![], vec![]),
        ("&", vec![cafe, street], vec![cafe, street, toms]),
        ("%", vec![cafe, street], vec![cafe, street, toms]),
    ] {
        for (person, expected) in [(&people.maya, mayas), (&people.ruth, everybodys)] {
            let total = expected.len() as u64;
            assert_eq!(listed(&store, person, &query(text)).await, (expected, total), "{text}");
        }
    }
    // The new name is found, and the old one no longer is.
    let change = ClientChange {
        version: chancery_domain::Version(1),
        name: "Kaffeehaus".parse().unwrap(),
        details: ContactDetails::default(),
    };
    store.clients.edit_client(permit(&people.maya, ClientId(cafe), people.maya.id), change).await.unwrap();
    assert_eq!(listed(&store, &people.maya, &query("zur")).await.1, 0);
    assert_eq!(listed(&store, &people.ruth, &query("kaffee")).await, (vec![cafe], 1));
}

pub async fn page_past_the_end_is_empty_with_total(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    for number in 0..30 {
        create_whole(&store, &people.maya, new_client(&format!("Client {number:02}"))).await;
    }
    for order in ORDERS {
        for text in ["", "client"] {
            let page = |page| ClientQuery { page, order, ..search_for(text) };
            let (first, second) =
                (listed(&store, &people.ruth, &page(1)).await, listed(&store, &people.ruth, &page(2)).await);
            assert_eq!((first.0.len(), first.1), (CLIENTS_PER_PAGE as usize, 30));
            assert_eq!((second.0.len(), second.1), (5, 30));
            for past in [3, 4_000_000_000] {
                assert_eq!(listed(&store, &people.ruth, &page(past)).await, (vec![], 30));
            }
        }
    }
}

/// The number of clients on the page, and the total.
async fn counted(store: &Store, by: &Person, query: &ClientQuery) -> (usize, ListTotal) {
    let page = store.clients.list_clients(firm_permit(by), query).await.unwrap();
    (page.lines.len(), page.total)
}

pub async fn search_that_everything_matches_is_counted_up_to_a_limit(database: Arc<AnyDatabase>) {
    const MAYAS: u64 = MAX_COUNTED_ROWS + 60;
    const TOMS: u64 = 30;
    let store = database.open().await;
    let people = people(&store).await;
    let new = |owner: &Person, number: u64| {
        let permit: Permit<CreateClient> = ask(principal(&people.ruth), NewClientResource(owner.id)).unwrap();
        (permit, new_client(&format!("Client {number}")))
    };
    let mayas = (0..MAYAS).map(|number| new(&people.maya, number));
    let clients = mayas.chain((0..TOMS).map(|number| new(&people.tom, number))).collect();
    store.client_imports.import_clients(clients, &|_| {}).await.unwrap();
    for order in ORDERS {
        let search = ClientQuery { order, ..search_for("client") };
        let page = |page| ClientQuery { page, ..search.clone() };
        for by in [&people.maya, &people.ruth] {
            for (number, more_than) in [(1, MAX_COUNTED_ROWS), (40, 1_000), (41, 1_025)] {
                let expected = (25, ListTotal::MoreThan(more_than));
                assert_eq!(counted(&store, by, &page(number)).await, expected, "{order:?}, page {number}");
            }
        }
        assert_eq!(
            counted(&store, &people.maya, &page(43)).await,
            (10, ListTotal::Exact(MAYAS)),
            "{order:?}"
        );
        assert_eq!(counted(&store, &people.maya, &page(44)).await, (0, ListTotal::Exact(MAYAS)), "{order:?}");
        let all = ClientQuery { counts_all: true, ..search.clone() };
        assert_eq!(
            counted(&store, &people.ruth, &all).await,
            (25, ListTotal::Exact(MAYAS + TOMS)),
            "{order:?}"
        );
        // What others own is neither found nor counted.
        assert_eq!(counted(&store, &people.tom, &search).await, (25, ListTotal::Exact(TOMS)), "{order:?}");
        let everything = ClientQuery { words: String::new(), ..search.clone() };
        let (found, _) = whole_list(&store, &people.ruth, &search).await;
        assert_eq!(found, whole_list(&store, &people.ruth, &everything).await.0, "{order:?}");
    }
}

pub async fn many_terms_of_few_clients_are_counted_exactly(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    // More rows of terms than are read for the limit, all of one client.
    let entry = |index: i64| {
        let terms: Vec<String> = (0..900).map(|term| format!("term{}", index * 900 + term)).collect();
        NewEntry { text: terms.join(" ").parse().unwrap(), ..note(people.maya.id, after_s(index), "Words") }
    };
    let client = NewClient { entries: (0..5).map(entry).collect(), ..new_client("Terms") };
    let found = create_whole(&store, &people.maya, client).await;
    create_whole(&store, &people.maya, new_client("Another")).await;
    for order in [ClientOrder::RecentFirst, ClientOrder::Owner] {
        let search = ClientQuery { order, ..search_for("term") };
        assert_eq!(listed(&store, &people.maya, &search).await, (vec![found.0], 1), "{order:?}");
    }
}

pub async fn equal_names_are_found_within_the_scope_only(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let mayas = create_whole(&store, &people.maya, new_client("Café Zürich")).await;
    let archived = NewClient { is_archived: true, ..new_client("CAFE zurich") };
    let archived = create_whole(&store, &people.maya, archived).await;
    let toms = create_whole(&store, &people.tom, new_client("Cafe Zürich")).await;
    create_whole(&store, &people.maya, new_client("Café Zürich Nord")).await;
    for (person, expected) in [
        (&people.maya, vec![mayas, archived]),
        (&people.tom, vec![toms]),
        (&people.ruth, vec![mayas, archived, toms]),
    ] {
        let name = "café ZÜRICH".parse().unwrap();
        let found = store.clients.clients_with_name(firm_permit(person), &name).await.unwrap();
        let found: Vec<ClientId> = found.into_iter().map(|client| client.id).collect();
        assert_eq!(found, expected, "{}", person.email);
    }
    for _ in 0..MAX_SAME_NAME_CLIENTS {
        create_whole(&store, &people.tom, new_client("Cafe Zürich")).await;
    }
    let name = "Cafe Zürich".parse().unwrap();
    let found = store.clients.clients_with_name(firm_permit(&people.ruth), &name).await.unwrap();
    assert_eq!(found.len(), MAX_SAME_NAME_CLIENTS as usize);
}

/// Words as written, and as search terms.
const WORDS: [(&str, &str); 10] = [
    ("Café", "cafe"),
    ("cafeteria", "cafeteria"),
    ("Müller", "muller"),
    ("MULLER", "muller"),
    ("Straße", "strasse"),
    ("ΟΔΟΣ", "οδοσ"),
    ("法律", "法律"),
    ("Ñandú", "nandu"),
    ("harbour", "harbour"),
    ("x", "x"),
];

const SEARCHES: [&str; 8] = ["", "caf", "müller", "STRASS", "x harbour", "οδός", "100", "法 nan"];

/// The expected state of a client, with its search terms.
#[derive(Clone, Debug)]
struct ExpectedClient {
    id: ClientId,
    owner: PersonId,
    is_archived: bool,
    name: Vec<usize>,
    last_entry_s: Option<i64>,
    version: i64,
}

impl ExpectedClient {
    fn written(name: &[usize]) -> String {
        name.iter().map(|word| WORDS[*word].0).collect::<Vec<_>>().join(" ")
    }

    fn folded(&self) -> String {
        self.name.iter().map(|word| WORDS[*word].1).collect::<Vec<_>>().join(" ")
    }

    fn is_found_by(&self, search: &str) -> bool {
        let number = self.id.to_string();
        let fold = |typed: &str| {
            let typed = typed.to_lowercase().replace('ü', "u").replace('ό', "ο");
            typed.replace('ς', "σ")
        };
        search.split_whitespace().map(fold).all(|beginning| {
            number.contains(&beginning) || self.name.iter().any(|word| WORDS[*word].1.starts_with(&beginning))
        })
    }
}

/// The expected list: the policy is asked about every client.
fn expected(known: &[ExpectedClient], people: &[Person], reader: &Person, query: &ClientQuery) -> Vec<i64> {
    let by = principal(reader);
    let mut found: Vec<&ExpectedClient> = known
        .iter()
        .filter(|client| {
            let resource = ClientResource { id: client.id, owner: Some(client.owner) };
            POLICY.is_allowed::<ReadClient>(by, resource)
        })
        .filter(|client| client.is_archived == query.is_archived)
        .filter(|client| query.owner.is_none_or(|owner| owner == client.owner))
        .filter(|client| client.is_found_by(&query.words))
        .collect();
    let email = |client: &ExpectedClient| {
        people.iter().find(|person| person.id == client.owner).map(|person| person.email.clone())
    };
    found.sort_by_key(|client| client.id);
    match query.order {
        ClientOrder::Id | ClientOrder::IdDescending => {}
        ClientOrder::Name | ClientOrder::NameDescending => found.sort_by_key(|client| client.folded()),
        ClientOrder::RecentFirst | ClientOrder::OldestFirst => {
            // All clients are created at second 0, which counts for those without entries.
            found.sort_by_key(|client| std::cmp::Reverse(client.last_entry_s.unwrap_or(0)));
        }
        ClientOrder::Owner | ClientOrder::OwnerDescending => {
            found.sort_by_key(|client| (email(client), client.owner, client.folded()));
        }
    }
    let backwards = [
        ClientOrder::IdDescending,
        ClientOrder::NameDescending,
        ClientOrder::OldestFirst,
        ClientOrder::OwnerDescending,
    ];
    if backwards.contains(&query.order) {
        found.reverse();
    }
    found.into_iter().map(|client| client.id.0).collect()
}

async fn whole_list(store: &Store, reader: &Person, query: &ClientQuery) -> (Vec<i64>, Vec<u64>) {
    let (mut found, mut totals) = (Vec::new(), Vec::new());
    for page in 1.. {
        let query = ClientQuery { page, ..query.clone() };
        let page = store.clients.list_clients(firm_permit(reader), &query).await.unwrap();
        totals.push(page.total.known());
        if page.lines.is_empty() {
            break;
        }
        found.extend(page.lines.into_iter().map(|line| line.client.id.0));
    }
    (found, totals)
}

/// A random client: its owner, its words, whether it is archived, the times of its entries, and a later change.
type RandomCase = (usize, Vec<usize>, bool, Vec<i64>, Change);

#[derive(Clone, Debug)]
enum Change {
    Nothing,
    Rename(Vec<usize>),
    Archive(bool),
    MoveTo(usize),
    AddEntry(i64),
}

fn random_clients() -> impl Strategy<Value = Vec<RandomCase>> {
    let name = || proptest::collection::vec(0..WORDS.len(), 1..4);
    let change = prop_oneof![
        2 => Just(Change::Nothing),
        1 => name().prop_map(Change::Rename),
        1 => any::<bool>().prop_map(Change::Archive),
        1 => (0..5_usize).prop_map(Change::MoveTo),
        1 => (-50..50_i64).prop_map(Change::AddEntry),
    ];
    let entries = proptest::collection::vec(-50..50_i64, 0..3);
    proptest::collection::vec((0..5_usize, name(), proptest::bool::weighted(0.2), entries, change), 0..40)
}

pub async fn client_list_matches_policy_on_random_firms(database: Arc<AnyDatabase>) {
    const ROUNDS: usize = 3;
    let store = database.open().await;
    let mut runner = TestRunner::deterministic();
    let mut people = Vec::new();
    for (name, role) in [
        ("maya", Role::Consultant),
        ("tom", Role::Consultant),
        ("ruth", Role::Partner),
        ("ann", Role::Partner),
        ("zoe", Role::Consultant),
    ] {
        people.push(sign_in(&store, name, role).await);
    }
    let partner = people[2].clone();
    let mut known: Vec<ExpectedClient> = Vec::new();
    for round in 0..ROUNDS {
        let draws = random_clients().new_tree(&mut runner).unwrap().current();
        let new: Vec<(Permit<CreateClient>, NewClient)> = draws
            .iter()
            .map(|(owner, name, is_archived, entries, _)| {
                let owner = people[*owner].id;
                let entries: Vec<NewEntry> =
                    entries.iter().map(|at| note(owner, after_s(*at), "A note")).collect();
                let new = NewClient {
                    entries,
                    is_archived: *is_archived,
                    ..new_client(&ExpectedClient::written(name))
                };
                (ask(principal(&partner), NewClientResource(owner)).unwrap(), new)
            })
            .collect();
        let ids = store.client_imports.import_clients(new, &|_| {}).await.unwrap();
        for (id, (owner, name, is_archived, entries, change)) in ids.into_iter().zip(draws) {
            let mut client = ExpectedClient {
                id,
                owner: people[owner].id,
                is_archived,
                name,
                last_entry_s: entries.into_iter().max(),
                version: 1,
            };
            match change {
                Change::Nothing => {}
                Change::Rename(name) => {
                    let change = ClientChange {
                        version: chancery_domain::Version(client.version),
                        name: ExpectedClient::written(&name).parse().unwrap(),
                        details: ContactDetails::default(),
                    };
                    let edit = permit::<EditClient>(&partner, id, client.owner);
                    store.clients.edit_client(edit, change).await.unwrap();
                    client.name = name;
                }
                Change::Archive(is_archived) => {
                    let archive = permit::<ArchiveClient>(&partner, id, client.owner);
                    let change = ArchiveChange { is_archived, version: None };
                    store.clients.set_client_archived(archive, change).await.unwrap();
                    client.is_archived = is_archived;
                }
                Change::MoveTo(to) => {
                    let reassign = permit::<ReassignClient>(&partner, id, client.owner);
                    store.clients.reassign_client(reassign, people[to].id, None).await.unwrap();
                    client.owner = people[to].id;
                }
                Change::AddEntry(at) => {
                    let edit = permit::<EditClient>(&partner, id, client.owner);
                    store.clients.add_entry(edit, note(partner.id, after_s(at), "Another")).await.unwrap();
                    client.last_entry_s = client.last_entry_s.max(Some(at));
                }
            }
            known.push(client);
        }
        for (index, person) in people.iter().enumerate() {
            for (turn, order) in ORDERS.into_iter().enumerate() {
                for is_archived in [false, true] {
                    // Over the rounds and people, every search is combined with every order.
                    for search in [SEARCHES[0], SEARCHES[(turn + index + round * 3) % SEARCHES.len()]] {
                        let owner = (turn == index).then(|| people[(index + round) % people.len()].id);
                        let words = search.to_owned();
                        let query = ClientQuery {
                            words,
                            owner,
                            is_archived,
                            order,
                            page: 1,
                            ..ClientQuery::default()
                        };
                        let (found, totals) = whole_list(&store, person, &query).await;
                        let expected = expected(&known, &people, person, &query);
                        assert_eq!(found, expected, "{} asks for {query:?}", person.email);
                        assert!(
                            totals.iter().all(|total| *total == expected.len() as u64),
                            "{totals:?}: {query:?}"
                        );
                    }
                }
            }
        }
    }
    assert!(known.len() > 2 * CLIENTS_PER_PAGE as usize, "too few for several pages: {}", known.len());
}
