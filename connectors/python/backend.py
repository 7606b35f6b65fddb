"""The build backend of this folder: meson has to start at the root of the checkout, where the project is described."""
import contextlib
import os
import pathlib

import mesonpy

_ROOT = pathlib.Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def _at_root():
    here = os.getcwd()
    os.chdir(_ROOT)
    try:
        yield
    finally:
        os.chdir(here)


def get_requires_for_build_wheel(config_settings=None):
    with _at_root():
        return mesonpy.get_requires_for_build_wheel(config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with _at_root():
        return mesonpy.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    with _at_root():
        return mesonpy.build_sdist(sdist_directory, config_settings)
