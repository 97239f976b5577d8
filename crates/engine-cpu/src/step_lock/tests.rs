//! Engines without a model: a step advances a clock that the test owns.

use super::*;
use chancery_domain::{ManualClock, SystemClock, UnixMillis};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// How long a test waits for another thread. Reached only if the rule is broken.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(UnixMillis(0)))
}

fn waiting(step_lock: &StepLock) -> usize {
    let state = step_lock.0.lock();
    state.engines.values().filter(|engine| engine.activity == Activity::Waiting).count()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let started = SystemClock.monotonic();
    while !is_so() {
        assert!(SystemClock.monotonic().saturating_duration_since(started) < WAIT_TIMEOUT, "never: {what}");
        thread::yield_now();
    }
}

#[test]
fn step_lock_is_exclusive_and_equal_tags_are_first_come_first_served() {
    let (step_lock, clock) = (StepLock::default(), clock());
    let (is_locked, order) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let holder = StepQueue::new(&step_lock, clock.clone());
    let first = holder.acquire();
    thread::scope(|scope| {
        for number in 0..4 {
            let queue = StepQueue::new(&step_lock, clock.clone());
            let (is_locked, order) = (&is_locked, &order);
            scope.spawn(move || {
                let _guard = queue.acquire();
                assert!(!is_locked.swap(true, Ordering::SeqCst), "two steps at once");
                order.lock().unwrap().push(number);
                is_locked.store(false, Ordering::SeqCst);
            });
            // Start the next thread only after this one has drawn its ticket.
            until("it waits", || waiting(&step_lock) == number + 1);
        }
        drop(first);
    });
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
}

#[test]
fn panic_releases_the_step_lock() {
    let step_lock = StepLock::default();
    let queue = StepQueue::new(&step_lock, clock());
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let _guard = queue.acquire();
        panic!("in the middle of a step");
    }));
    assert!(outcome.is_err());
    drop(queue.acquire());
}

/// Two engines that always have work, without threads: whoever is next steps, while the other waits.
struct BusyPair {
    step_lock: StepLock,
    clock: Arc<ManualClock>,
    /// Each with the duration of its steps.
    engines: [(StepQueue, Duration); 2],
}

impl BusyPair {
    fn new(durations: [Duration; 2]) -> Self {
        let (step_lock, clock) = (StepLock::default(), clock());
        let engines = durations.map(|duration| (StepQueue::new(&step_lock, clock.clone()), duration));
        Self { step_lock, clock, engines }
    }

    /// Runs one step; returns the index of the engine that stepped.
    fn step(&self) -> usize {
        let mut state = self.step_lock.0.lock();
        let virtual_time = state.virtual_time;
        for engine in state.engines.values_mut() {
            engine.charged = engine.charged.max(virtual_time);
            engine.activity = Activity::Waiting;
        }
        let next = state.next().unwrap();
        for (id, engine) in &mut state.engines {
            engine.activity = if *id == next { Activity::Waiting } else { Activity::Idle };
        }
        drop(state);
        let index = self.engines.iter().position(|(queue, _)| queue.id == next).unwrap();
        let (queue, duration) = &self.engines[index];
        let _guard = queue.acquire();
        self.clock.advance(*duration);
        index
    }

    /// Steps of the second engine from one step of the first to the next.
    fn steps_between(&self) -> usize {
        while self.step() == 1 {}
        let mut steps = 0;
        while self.step() == 1 {
            steps += 1;
        }
        steps
    }
}

#[test]
fn busy_large_model_leaves_a_small_one_its_share_of_the_time() {
    let pair = BusyPair::new([Duration::from_millis(100), Duration::from_millis(5)]);
    for _ in 0..5 {
        assert!((19..=21).contains(&pair.steps_between()), "as long as one step of the other");
    }
}

#[test]
fn long_step_is_charged_up_to_a_bound_so_that_no_engine_waits_long_for_its_next() {
    let pair = BusyPair::new([Duration::from_secs(60), Duration::from_millis(1)]);
    let bound = usize::try_from(MAX_STEP_CHARGE.as_millis()).unwrap();
    assert!((bound - 1..=bound + 1).contains(&pair.steps_between()));
}

#[test]
fn waiting_engines_give_one_with_less_time_a_moment_to_come_back() {
    let (step_lock, clock) = (StepLock::default(), clock());
    let [small, large] = [(), ()].map(|()| StepQueue::new(&step_lock, clock.clone()));
    drop(small.acquire());
    let has_grace = |queue: &StepQueue| {
        let state = step_lock.0.lock();
        state.has_returning_below(state.engines[&queue.id].charged)
    };
    assert!(!has_grace(&large), "both have had the same");
    {
        let _guard = large.acquire();
        clock.advance(Duration::from_millis(50));
    }
    assert!(has_grace(&large) && !has_grace(&small));
}

#[test]
fn idle_engine_saves_up_no_time() {
    let (step_lock, clock) = (StepLock::default(), clock());
    let [busy, idle] = [(), ()].map(|()| StepQueue::new(&step_lock, clock.clone()));
    for _ in 0..10 {
        let _guard = busy.acquire();
        clock.advance(Duration::from_millis(100));
    }
    drop(idle.acquire());
    let state = step_lock.0.lock();
    assert_eq!(state.engines[&idle.id].charged, Duration::from_millis(900), "the tag of the last step");
}

#[test]
fn engine_that_does_not_come_back_delays_the_others_once() {
    let (step_lock, clock) = (StepLock::default(), clock());
    let [one, two] = [(), ()].map(|()| StepQueue::new(&step_lock, clock.clone()));
    drop(one.acquire());
    {
        let _guard = two.acquire();
        clock.advance(Duration::from_millis(50));
    }
    // The first has the lower tag and never returns.
    drop(two.acquire());
    assert_eq!(step_lock.0.lock().engines[&one.id].activity, Activity::Idle);
}

#[test]
fn engine_knows_whether_it_shares_the_cores_and_a_dropped_one_does_not_count() {
    let (step_lock, clock) = (StepLock::default(), clock());
    let [one, two] = [(), ()].map(|()| StepQueue::new(&step_lock, clock.clone()));
    assert!(!one.is_contended());
    let guard = two.acquire();
    assert!(one.is_contended() && !two.is_contended());
    drop(guard);
    assert!(one.is_contended(), "it may be back in a moment");
    drop(one.acquire());
    assert!(!one.is_contended(), "it has not stepped since");
    drop(two.acquire());
    assert!(one.is_contended());
    drop(two);
    assert!(!one.is_contended());
}
