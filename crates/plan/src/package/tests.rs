mod checks;
mod rendering;
