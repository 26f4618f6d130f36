use std::path::PathBuf;

use super::plan::Namespace;
use super::*;

/// Remembers what it was asked, and refuses what it is told to refuse.
struct Fake {
    performed: Vec<Step>,
    refuse: fn(&Step) -> bool,
}

impl Kernel for Fake {
    fn perform(&mut self, step: &Step) -> io::Result<()> {
        if (self.refuse)(step) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.performed.push(step.clone());
        Ok(())
    }
}

fn request(uid: Option<u32>) -> Request {
    Request {
        policy: Policy::Nvidia { library: "/opt/driver/libcuda.so.1".into(), devices: vec![3] },
        root: PathBuf::from("/jail"),
        uid,
        rejoin: Some("/state/workers/rejoin".into()),
        keep: vec![3],
        without_pid_namespace: false,
        names_descriptors: uid.is_some(),
        driver_filter: DriverFilter::Off,
        branch: Branch::of("580.1"),
    }
}

fn attempt(request: &Request, refuse: fn(&Step) -> bool) -> (Report, Vec<Step>) {
    let mut fake = Fake { performed: Vec::new(), refuse };
    let report = enter(&mut fake, &plan(request)).unwrap();
    (report, fake.performed)
}

fn position(steps: &[Step], wanted: impl Fn(&Step) -> bool) -> usize {
    steps.iter().position(wanted).expect("the step is there")
}

#[test]
fn privileges_go_after_the_root_and_before_the_filter() {
    let (report, steps) = attempt(&request(Some(1234)), |_| false);
    assert!(report.missing.is_empty());
    let order = [
        position(&steps, |s| matches!(s, Step::CloseDescriptorsExcept(keep) if *keep == [3])),
        position(&steps, |s| *s == Step::Unshare(Namespace::Mount)),
        position(&steps, |s| *s == Step::MakeMountsPrivate),
        position(&steps, |s| matches!(s, Step::ForkIntoPidNamespace(..))),
        position(&steps, |s| matches!(s, Step::MountRoot(_))),
        position(&steps, |s| matches!(s, Step::MountProc(_))),
        position(&steps, |s| matches!(s, Step::PivotRoot(_))),
        position(&steps, |s| *s == Step::DropBoundingCapabilities),
        position(&steps, |s| *s == Step::LockSecurebits),
        position(&steps, |s| *s == Step::SetIds(1234)),
        position(&steps, |s| *s == Step::DropCapabilities),
        // A change of user undoes the tether.
        position(&steps, |s| *s == Step::Tether),
        position(&steps, |s| *s == Step::NoNewPrivileges),
        position(&steps, |s| *s == Step::FilterSending),
        position(&steps, |s| matches!(s, Step::Filter(_))),
    ];
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(order[14], steps.len() - 1);
    assert!(!steps.contains(&Step::Unshare(Namespace::User)));
}

#[test]
fn without_root_a_user_namespace_comes_before_the_others() {
    let (_, steps) = attempt(&request(None), |_| false);
    let user = position(&steps, |s| *s == Step::Unshare(Namespace::User));
    let others = position(&steps, |s| *s == Step::Unshare(Namespace::Mount));
    assert_eq!(steps[user + 1], Step::MapOwnIds);
    assert!(user < others);
    assert!(!steps.iter().any(|step| matches!(step, Step::SetIds(_))));
}

#[test]
fn nothing_is_mounted_where_the_mounts_would_be_everybodys() {
    for refuse in
        [(|s| *s == Step::Unshare(Namespace::Mount)) as fn(&Step) -> bool, |s| *s == Step::MakeMountsPrivate]
    {
        let (report, steps) = attempt(&request(Some(1)), refuse);
        let mounts = |s: &Step| {
            matches!(
                s,
                Step::MountRoot(_)
                    | Step::Bind { .. }
                    | Step::BindAs { .. }
                    | Step::Scratch { .. }
                    | Step::MountProc(_)
                    | Step::PivotRoot(_)
            )
        };
        assert!(!steps.iter().any(mounts));
        assert_eq!(report.missing.to_string(), "mount namespace, root of its own, proc of its own");
        // The rest still holds.
        assert!(steps.contains(&Step::DropCapabilities) && matches!(steps.last(), Some(Step::Filter(_))));
    }
}

#[test]
fn a_machine_without_namespaces_still_drops_what_it_can() {
    let (report, steps) = attempt(&request(None), |s| matches!(s, Step::Unshare(_)));
    assert!(!steps.iter().any(|s| matches!(s, Step::ForkIntoPidNamespace(..))));
    assert_eq!(report.reasons.len(), 9);
    for step in [Step::DropCapabilities, Step::NoNewPrivileges, Step::SetLimits] {
        assert!(steps.contains(&step), "{step:?}");
    }
}

#[test]
fn a_half_entered_pid_namespace_is_fatal() {
    let mut fake = Fake { performed: Vec::new(), refuse: |s| matches!(s, Step::ForkIntoPidNamespace(..)) };
    assert!(enter(&mut fake, &plan(&request(Some(1)))).is_err());
}

#[test]
fn without_a_pid_namespace_the_driver_sees_the_proc_that_fits() {
    let mut request = request(Some(1));
    request.without_pid_namespace = true;
    let (_, steps) = attempt(&request, |_| false);
    assert!(!steps.iter().any(|s| matches!(s, Step::ForkIntoPidNamespace(..) | Step::Tether)));
    assert!(steps.iter().any(|s| matches!(s, Step::BindAs { to: "proc", .. })));
}

#[test]
fn the_filter_before_the_driver_is_for_those_who_reach_one() {
    let mut request = request(Some(1));
    let is_filter = |step: &Step| matches!(step, Step::FilterDriver(Ok(_)) | Step::TrySupervision);
    for (filter, count) in [(DriverFilter::Off, 0), (DriverFilter::Refuse, 1), (DriverFilter::Supervise, 2)] {
        request.driver_filter = filter;
        let (report, steps) = attempt(&request, |_| false);
        assert!(report.missing.is_empty());
        assert_eq!(steps.iter().filter(|step| is_filter(step)).count(), count, "{filter:?}");
        let supervised = |step: &Step| matches!(step, Step::ForkIntoPidNamespace(_, Some(_)));
        assert_eq!(steps.iter().any(supervised), filter == DriverFilter::Supervise);
        if count > 0 {
            let filter = position(&steps, is_filter);
            assert!(filter > position(&steps, |s| *s == Step::NoNewPrivileges), "the kernel would refuse it");
            assert!(filter < position(&steps, |s| matches!(s, Step::Filter(_))));
        }
    }
    // Where workers share a user, others of that user could look into them, too.
    request.uid = None;
    let (_, steps) = attempt(&request, |_| false);
    assert!(steps.contains(&Step::ForkIntoPidNamespace(None, None)));
    request.policy = Policy::Soft;
    assert!(!attempt(&request, |_| false).1.iter().any(is_filter));
    let (report, _) =
        attempt(&Request { policy: self::request(None).policy, branch: Branch::of("1.1"), ..request }, |s| {
            matches!(s, Step::FilterDriver(Err(_)))
        });
    assert_eq!(report.missing.to_string(), "driver filter", "of a driver that nobody has read there is no list");
}

#[test]
fn the_soft_policy_shows_no_file_of_the_host() {
    let binds = Policy::Soft.binds();
    assert!(binds.iter().all(|bind| bind.path.starts_with("/dev")));
    let nvidia = request(None).policy.binds();
    let shown = |path: &str| nvidia.iter().any(|bind| bind.path == *path);
    assert!(shown("/opt/driver") && shown("/dev/nvidia3"));
    assert!(!shown("/dev/nvidia0"));
}
