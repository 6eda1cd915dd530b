//! Tarballs and directories become images.
