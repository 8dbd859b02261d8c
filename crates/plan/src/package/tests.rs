mod checks;
mod rendering;
mod shipped;
