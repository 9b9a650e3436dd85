"""The fixed-prefix probe (Appendix E): frozen positions, and what a model shows there."""

from saki.probe.build import ProbeSettings, build_probe
from saki.probe.measure import measure_probe, vocabulary_digest
from saki.probe.measurements import Measurement, read_measurement, write_measurement
from saki.probe.records import MEASURES, Measures, Positions, Probe, TeacherLaws
from saki.probe.storage import ProbeFileError, read_probe, write_probe

__all__ = [
    "MEASURES",
    "Measurement",
    "Measures",
    "Positions",
    "Probe",
    "ProbeFileError",
    "ProbeSettings",
    "TeacherLaws",
    "build_probe",
    "measure_probe",
    "read_measurement",
    "read_probe",
    "vocabulary_digest",
    "write_measurement",
    "write_probe",
]
