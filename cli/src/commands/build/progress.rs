use std::cell::RefCell;

use edgeopt_optimizer::build::Progress;
use indicatif::ProgressBar;

use crate::screen::Screen;

/// One progress bar after the other, one for each stage.
pub(super) struct Bars<'a> {
    screen: &'a Screen,
    current: RefCell<ProgressBar>,
}

impl<'a> Bars<'a> {
    pub(super) fn new(screen: &'a Screen) -> Self {
        Self {
            screen,
            current: RefCell::new(ProgressBar::hidden()),
        }
    }

    pub(super) fn finish(&self) {
        self.current.borrow().finish_and_clear();
    }
}

impl Progress for Bars<'_> {
    fn stage(&self, name: &str, steps: Option<u64>) {
        self.finish();
        self.current.replace(self.screen.bar(name, steps));
    }

    fn at(&self, step: u64) {
        self.current.borrow().set_position(step);
    }
}
