use anyhow::Result;
use futures::future::BoxFuture;

use crate::Ctx;

/// One thing that both servers do alike.
#[derive(Clone, Copy)]
pub struct Case {
    /// The expected behavior, as a sentence with underscores for spaces.
    pub name: &'static str,
    /// The area of the API.
    pub area: &'static str,
    /// Tries it.
    pub run: fn(Ctx) -> BoxFuture<'static, Result<()>>,
    /// The deliberate difference between the two servers, with its reason.
    pub differs: Option<&'static str>,
    /// Whether it does something to the whole server, such as forgetting history, that cases beside it would feel. Such
    /// cases run after all others.
    pub disruptive: bool,
}

impl Case {
    /// The name as a sentence.
    pub fn sentence(&self) -> String {
        self.name.replace('_', " ")
    }
}

/// Makes the list of an area's cases from their functions: `cases!["verbs"; one, two(differs "why"), three(disruptive)]`.
macro_rules! cases {
    ($area:literal; $($name:ident $(($word:ident $($reason:literal)?))?),* $(,)?) => {
        vec![$($crate::Case {
            name: stringify!($name),
            area: $area,
            run: |ctx| Box::pin($name(ctx)),
            differs: cases!(@differs $($word $($reason)?)?),
            disruptive: cases!(@disruptive $($word)?),
        }),*]
    };
    (@differs differs $reason:literal) => { Some($reason) };
    (@differs $($word:ident)?) => { None };
    (@disruptive disruptive) => { true };
    (@disruptive $($word:ident)?) => { false };
}
