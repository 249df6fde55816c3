//! What a Tombolo federation decides.
//!
//! Everything here is a value or a state machine without IO: a message and `now` go in, the machine changes itself and leaves effects
//! (send, wake me at, report). No socket, clock, thread, randomness or actor is known here; seeds and instants come in by argument. The
//! actors in `tombolo-actors` put these machines into mailboxes; the simulator runs the very same ones.
//!
//! * [`ids`], [`time`]: names of nodes and rounds, the monotonic clock's unit.
//! * [`plan`]: a checked topology, the only configuration the machines know.
//! * [`policy`], [`authorize`]: who may do what at which site, and who may say what to whom.
//! * [`tensor`]: named tensors on one flat `f32` slice.
//! * [`text`]: texts of others, cut to what can travel.
//! * [`event`]: past facts, from which logs, reports and the command line are derived.
//! * [`machine`]: the form that every state machine has.
//! * [`aggregate`], [`outer`], [`fold`]: the mathematics of a round; [`inner`]: that of a local step.
//! * [`compress`]: codecs, and the memory of what they lose.
//! * [`pace`]: how fast nodes are, and how many steps each is given.
//! * [`outline`], [`heal`]: a model in chunks that prove themselves, and which of them is asked of whom.
//! * [`collective`]: who reads and writes what when ranks of one machine reduce in place.
//! * [`congestion`]: how much may be on its way to a peer.
//! * [`wire`]: what travels between nodes.
//! * [`view`], [`membership`]: who takes part, in numbered views.
//! * [`link`], [`heartbeat`], [`ladder`], [`member`], [`gateway`], [`coordinator`]: the state machines of a connection, of a peer's
//!   liveness and what its silence leads to, of a node, of its domain and of the federation.
//! * [`record`]: what every domain holds of what happened, signed by all.
//! * [`clock`]: how far a peer's clock is from ours.
//! * [`waiting`]: how long a node waits for others; [`wait_for`]: which actors wait for each other, and never go on.
//! * [`mutants`]: bugs planted on purpose, for the tests of the tests.
//! * [`trainer`]: what a user's model must do.

#![forbid(unsafe_code)]

pub mod aggregate;
pub mod authorize;
pub mod clock;
pub mod collective;
pub mod compress;
pub mod congestion;
pub mod coordinator;
pub mod event;
pub mod fold;
pub mod gateway;
pub mod heal;
pub mod heartbeat;
pub mod ids;
pub mod inner;
pub mod ladder;
pub mod link;
pub mod machine;
pub mod member;
pub mod membership;
pub mod mutants;
pub mod outer;
pub mod outline;
pub mod pace;
pub mod plan;
pub mod policy;
pub mod record;
pub mod relay;
pub mod rng;
pub mod route;
pub mod shaping;
pub mod staleness;
pub mod tensor;
pub mod text;
pub mod time;
pub mod trainer;
pub mod view;
pub mod wait_for;
pub mod waiting;
pub mod wire;
