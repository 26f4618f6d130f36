//! A hostile client does its worst in one zone while an honest one computes in another.
