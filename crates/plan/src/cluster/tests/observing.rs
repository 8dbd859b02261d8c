use std::sync::Mutex;

use super::*;

/// A live object that notes when it is parsed.
#[derive(Debug)]
struct ParseRecorder {
    name: String,
    object: Value,
    parsed: Arc<Mutex<Vec<String>>>,
}

impl LiveObject for ParseRecorder {
    fn value(&self) -> Value {
        self.parsed.lock().unwrap().push(self.name.clone());
        self.object.clone()
    }

    fn print(&self) -> u64 {
        self.object.print()
    }

    fn extension(&self) -> Option<&str> {
        self.object.extension()
    }
}

impl TestCluster {
    /// The names of objects that a decision parses.
    fn parsed(&self) -> Vec<String> {
        let parsed = Arc::<Mutex<Vec<String>>>::default();
        self.look(|seen| {
            let mut seen = seen.clone();
            for ((kind, name), object) in &self.live {
                let noted = ParseRecorder { name: name.clone(), object: object.clone(), parsed: Arc::clone(&parsed) };
                seen.objects.insert(*kind, name, Arc::new(noted));
            }
            decide(&seen, self.now)
        });
        Arc::try_unwrap(parsed).unwrap().into_inner().unwrap()
    }
}

#[test]
fn a_pass_in_which_nothing_changed_parses_no_object_of_a_component() {
    let mut world = TestCluster::new();
    world.settle();
    assert_eq!(world.decide().rested.len(), ControlPlaneComponent::ALL.len());
    assert_eq!(world.parsed(), ["default-deny"], "one policy is of no component");
    // Who remembers nothing has to compare everything.
    world.rested.take();
    let parsed = world.parsed();
    assert!(world.live.keys().all(|(_, name)| parsed.contains(name)), "{parsed:?}");
}
